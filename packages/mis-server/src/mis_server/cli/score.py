"""`mis-server score`: files to files, here or on a Ray cluster."""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mis_core.config import EngineConfig
from mis_server.cli.command import Command
from mis_server.cli.options import declared, options_of, read, read_engine
from mis_server.telemetry.logs import log_to_stderr

_MANY = "Many machines"
_COUNT, _SHARE = click.IntRange(min=1), click.FloatRange(min=0)


def _without_mark(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Remove the byte order mark of a file whose text a shell put here."""
    return text and text.removeprefix("\ufeff")


@dataclass(frozen=True, kw_only=True)
class OfflineOptions:
    """The options of the command without those of the engine, in the order of `--help`."""

    items: str | None = declared(
        None,
        "File of items to score: JSONL, as it is or compressed (gzip, zstd), or Parquet; or - for standard input; "
        "default: none, needed without --ray.",
    )
    output: str | None = declared(
        None,
        "JSONL file of scores, or - for standard output; for Parquet, and with --ray, a folder; default: next to the "
        "items.",
    )
    query: str | None = declared(None, "Query text of lines without their own.", callback=_without_mark)
    labels: tuple[str, ...] = declared((), "Label texts of any length, such as ' yes' ' no'.")
    label_token_ids: tuple[int, ...] = declared((), "Labels as token ids.")
    apply_softmax: bool = declared(False, "Return a softmax over the labels.", show_default=False)
    item_first: bool = declared(False, "Put each item before the query.", show_default=False)
    temperature: float = declared(1.0, "Temperature of the softmax.")
    rerank: bool = declared(
        False, "Items are documents: one score for each, its relevance to the query; needs no labels."
    )
    batch_size: int = declared(512, "Maximum items per request.")
    batch_tokens: int = declared(65536, "Tokens of items, about, above which a request gets no further item.")
    output_format: str | None = declared(
        None,
        "Scores as JSONL or as a folder of Parquet files; default: parquet if --output, or with --ray --input, ends in "
        ".parquet, else jsonl.",
        type=click.Choice(["jsonl", "parquet"]),
    )
    score_column: str = declared(
        "scores", "Name of the scores in the output: a field of its lines, a column of Parquet.", metavar="NAME"
    )
    overwrite: bool = declared(False, "Start over instead of resuming what this command wrote.", show_default=False)
    ray: str | None = declared(
        None,
        "Score on a Ray cluster: ADDRESS, or without it the one of this machine or RAY_ADDRESS, else one that is "
        "started here; default: no cluster.",
        group=_MANY,
        flag_value="",
        metavar="[ADDRESS]",
    )
    input: str | None = declared(
        None,
        "File, folder or glob of JSONL (also .jsonl.gz, .jsonl.zst) and Parquet files, on disk or at s3://..., "
        "gs://...; default: none, needed with --ray.",
        group=_MANY,
    )
    part_bytes: int = declared(
        4 * 1024 * 1024,
        "Bytes of input, of Parquet uncompressed, that are scored, written and resumed as one.",
        group=_MANY,
        type=_COUNT,
    )
    actors: int = declared(1, "Actors, each with an engine of its own.", group=_MANY, type=_COUNT)
    actor_cpus: float = declared(1.0, "Cores that an actor reserves.", group=_MANY, type=_SHARE)
    actor_gpus: float = declared(0.0, "GPUs that an actor reserves.", group=_MANY, type=_SHARE)
    actor_tpus: float = declared(0.0, "TPU chips that an actor reserves.", group=_MANY, type=_SHARE)

    def format_for(self, path: str | None) -> str:
        """Return how scores are written, by the end of a path unless it is said."""
        return self.output_format or ("parquet" if (path or "").endswith(".parquet") else "jsonl")


def _score(**given: Any) -> None:
    """Score the rows of files with MODEL, without a server; with --ray, on a cluster.

    Each line is a text, a list of token ids, or an object with `item` or `items` and, optionally, `query` and `id`. The
    output has one line for each. To resume an interrupted run, start it again.
    """
    engine, options = read_engine(given), read(OfflineOptions, given)
    if not (options.labels or options.label_token_ids or options.rerank):
        raise click.UsageError("--labels is missing: texts such as ' yes' ' no', or --label-token-ids.")
    log_to_stderr("human", "warning")
    errors = _score_here(options, engine) if options.ray is None else _score_there(options, options.ray, engine)
    if errors:
        raise SystemExit(2)


def _score_here(options: OfflineOptions, engine: EngineConfig) -> int:
    items, output = options.items, options.output
    if items is None:
        raise click.UsageError("Missing option '--items'.")
    from mis_server.offline import Job, OfflineQuery, score_file
    from mis_server.offline.inputs import is_read_once
    from mis_server.offline.output import is_standard_output

    if output is None and is_read_once(items):
        raise click.UsageError(f"Missing option '--output', which {items} needs; - is standard output.")
    written_as = options.format_for(output)
    if output is not None and is_standard_output(output) and written_as == "parquet":
        raise click.UsageError("--output-format parquet writes a folder, which standard output is not; name one.")
    if output is None:
        output = str(_beside(Path(items), written_as))
    asked = read(OfflineQuery, vars(options))
    job = Job(asked=asked, input=items, output=output, format=written_as, input_option="items")
    errors = score_file(job, engine, overwrite=options.overwrite)
    where = "standard output" if is_standard_output(output) else output
    click.echo(
        f"Scores written to {where}." + (f" {errors} rows have an error." if errors else ""),
        err=is_standard_output(output),
    )
    return errors


def _beside(items: Path, format: str) -> Path:
    """Return where the scores of a file are, unless it is said."""
    plain = items.with_suffix("") if items.suffix in (".gz", ".zst") else items
    return plain.parent / f"{plain.stem}.scores.{format}"


def _score_there(options: OfflineOptions, address: str, engine: EngineConfig) -> int:
    if not options.input:
        raise click.UsageError("Missing option '--input', which --ray needs.")
    if not options.output:
        raise click.UsageError("Missing option '--output', which --ray needs.")
    if importlib.util.find_spec("ray") is None:
        raise click.ClickException("--ray needs Ray: pip install 'mis-server[ray]'.")
    from mis_server.offline import OfflineQuery
    from mis_server.ray.job import Actors, JobFiles, score_files

    files = read(JobFiles, vars(options), format=options.format_for(options.input))
    asked = read(OfflineQuery, vars(options))
    actors = Actors(number=options.actors, cpus=options.actor_cpus, gpus=options.actor_gpus, tpus=options.actor_tpus)
    done = score_files(files, asked, engine, actors, overwrite=options.overwrite, cluster=_cluster(address))
    click.echo(
        f"Scores written to {options.output}: {done.rows} rows in {done.parts} parts, {done.parts_before} parts were "
        "there." + (f" {done.errors} of these rows have an error." if done.errors else "")
    )
    return done.errors


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[None]:
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


SCORE = Command("score", _score, [*options_of(OfflineOptions), *options_of(EngineConfig)])
"""The command."""
