"""What the commands share that answer the rows of files: here, or on a Ray cluster."""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mis_core.config import EngineConfig
from mis_server.cli.options import declared, flag_of, read

if TYPE_CHECKING:
    from mis_server.offline.asked import OfflineTask

MANY = "Many machines"
"""Heading of the options of a cluster."""

FORMATS = click.Choice(["jsonl", "parquet"])
"""How answers are written."""

_COUNT, _SHARE = click.IntRange(min=1), click.FloatRange(min=0)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The options of a cluster that are the same for all commands, in the order of `--help`."""

    part_bytes: int = declared(
        4 * 1024 * 1024,
        "Size of a part in bytes of input, uncompressed for Parquet. A part is scored, written and resumed as a whole.",
        group=MANY,
        type=_COUNT,
    )
    actors: int = declared(1, "Number of actors, each with an engine of its own.", group=MANY, type=_COUNT)
    actor_cpus: float = declared(1.0, "Cores that an actor reserves.", group=MANY, type=_SHARE)
    actor_gpus: float = declared(0.0, "GPUs that an actor reserves.", group=MANY, type=_SHARE)
    actor_tpus: float = declared(0.0, "TPU chips that an actor reserves.", group=MANY, type=_SHARE)


@dataclass(frozen=True, kw_only=True)
class AnsweredFiles:
    """What a command reads and writes.

    Attributes:
        answers: What its answers are called, such as `scores`.
        input: A file; with a cluster files. None if the option is not given.
        input_option: That option.
        output: A file or folder; None for one beside the input.
        output_format: How answers are written; None: as the end of a path says.
        overwrite: Start over, whatever the output has.
        ray: Address of a cluster, empty for the default one; None for this process.
    """

    answers: str
    input: str | None
    input_option: str
    output: str | None
    output_format: str | None
    overwrite: bool
    ray: str | None

    def answer(self, asked: "OfflineTask", engine: EngineConfig, cluster: ClusterOptions) -> None:
        """Answer all rows; exit with 2 if some have an error."""
        if self._answer_here(asked, engine) if self.ray is None else self._answer_there(asked, engine, cluster):
            raise SystemExit(2)

    def _answer_here(self, asked: "OfflineTask", engine: EngineConfig) -> int:
        from mis_server.offline import Job, score_file
        from mis_server.offline.inputs import is_read_once
        from mis_server.offline.output import is_standard_output

        if self.input is None:
            raise click.UsageError(f"Missing option '{flag_of(self.input_option)}'.")
        output = self.output
        if output is None and is_read_once(self.input):
            raise click.UsageError(f"Missing option '--output', which {self.input} needs; - is standard output.")
        written_as = self._format_for(output)
        if output is not None and is_standard_output(output) and written_as == "parquet":
            raise click.UsageError("--output-format parquet writes a folder, not to standard output; name one.")
        if output is None:
            output = str(self._beside(Path(self.input), written_as))
        job = Job(asked=asked, input=self.input, output=output, format=written_as, input_option=self.input_option)
        errors = score_file(job, engine, overwrite=self.overwrite)
        where = "standard output" if is_standard_output(output) else output
        click.echo(
            f"{self.answers.capitalize()} written to {where}." + (f" {errors} rows have an error." if errors else ""),
            err=is_standard_output(output),
        )
        return errors

    def _answer_there(self, asked: "OfflineTask", engine: EngineConfig, cluster: ClusterOptions) -> int:
        if not self.input:
            raise click.UsageError("Missing option '--input', which --ray needs.")
        if not self.output:
            raise click.UsageError("Missing option '--output', which --ray needs.")
        if importlib.util.find_spec("ray") is None:
            raise click.ClickException("--ray needs Ray: pip install 'mis-server[ray]'.")
        from mis_server.ray.job import Actors, JobFiles, score_files

        files = read(JobFiles, vars(self) | vars(cluster), format=self._format_for(self.input))
        actors = Actors(
            number=cluster.actors, cpus=cluster.actor_cpus, gpus=cluster.actor_gpus, tpus=cluster.actor_tpus
        )
        done = score_files(files, asked, engine, actors, overwrite=self.overwrite, cluster=_connected(self.ray))
        click.echo(
            f"{self.answers.capitalize()} written to {self.output}: {done.rows} rows in {done.parts} parts, "
            f"{done.parts_before} parts were there."
            + (f" {done.errors} of these rows have an error." if done.errors else "")
        )
        return done.errors

    def _format_for(self, path: str | None) -> str:
        """Return how answers are written, by the end of a path unless it is said."""
        return self.output_format or ("parquet" if (path or "").endswith(".parquet") else "jsonl")

    def _beside(self, path: Path, format: str) -> Path:
        """Return where the answers of a file are, unless it is said."""
        plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
        return plain.parent / f"{plain.stem}.{self.answers}.{format}"


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start one."""
    import ray

    try:
        with contextlib.chdir("/"):  # Ray lets every worker import from where this is called
            ray.init(address or None, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise click.ClickException(f"--ray: there is no cluster to use: {str(error).splitlines()[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()
