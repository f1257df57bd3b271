"""`mis-server score --ray`: files to files on a cluster, resumed part by part."""

import asyncio
import contextlib
import json
import logging
import os
import posixpath
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import ray
import ray.data

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, EngineUnavailable, MisError, ModelError
from mis_server.offline.answers import Schema, id_type, parquet_of, table_of
from mis_server.offline.asked import OfflineTask, decisive
from mis_server.offline.folder import JobFolder, everywhere, file_system
from mis_server.offline.places import LOCAL, Place, check_apart, engine_places
from mis_server.offline.rows import InputRow
from mis_server.ray.actor import Host, for_actors
from mis_server.ray.dataset import Actors
from mis_server.ray.parts import DatasetPart, Source, digest, plan, read_rows, reads, sources

_MOST_BLOCKS = 20_000  # parts of larger runs share them


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """What is read and written.

    Attributes:
        input: A file, folder or glob of JSONL and Parquet files, on disk or with a scheme such as `s3://`.
        output: A folder; the parts of an input file are in a folder of its name.
        format: `jsonl` or `parquet`.
        part_bytes: About how much of the input, of Parquet uncompressed, is scored and written as one.
    """

    input: str
    output: str
    format: str
    part_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Counts:
    """What a run has done.

    Attributes:
        rows: Rows it has written.
        errors: How many of them have an error.
        parts: Parts it has written.
        parts_before: Parts that were there before.
    """

    rows: int
    errors: int
    parts: int
    parts_before: int


def score_files(
    files: JobFiles,
    asked: OfflineTask,
    config: EngineConfig,
    actors: Actors,
    *,
    overwrite: bool = False,
    cluster: contextlib.AbstractContextManager[object] | None = None,
) -> Counts:
    """Score on a Ray cluster what the output does not have yet.

    Args:
        files: What is read and written.
        asked: What is asked of every row.
        config: The engine's options.
        actors: How many score, and what each reserves.
        overwrite: Start over, whatever the output has.
        cluster: Connects to the cluster, once nothing is refused; None: `ray.init` has done so.

    Raises:
        ConfigError: files cannot be read or written, or the output was made with other arguments, is not ours, or is
            read.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: an engine ended again and again.
    """
    files = replace(files, input=everywhere(files.input), output=everywhere(files.output))
    fs, pattern = file_system(files.input)
    found = sources(fs, pattern)
    check_output(files, found, [*engine_places(config), *asked.also_read])
    planned = plan(fs, found, files.part_bytes, asked)
    schema = Schema(asked, id_type(planned.id_types)) if files.format == "parquet" else None
    made_with = decisive(asked, config) | {"part_bytes": files.part_bytes, "input": digest(fs, found)}
    output = JobFolder(files.output, files.format, made_with)
    written = output.check(config.dtype, overwrite=overwrite)
    missing = [part for part in planned.parts if part.name not in written]
    rows = errors = 0
    if missing:
        with cluster or contextlib.nullcontext():
            rows, errors = _run(missing, actors, output, (files, asked, for_actors(config)), schema)
    else:
        output.begin()
    output.end()
    return Counts(rows, errors, len(missing), len(planned.parts) - len(missing))


def check_output(files: JobFiles, found: list[Source], others: list[Place]) -> None:
    """Refuse an output that is read, or that the next run would read.

    Args:
        files: With paths that mean the same everywhere.
        found: The files of the input.
        others: What else is read.

    Raises:
        ConfigError: it is.
    """
    (source_fs, pattern), (fs, folder) = file_system(files.input), file_system(files.output)
    inputs = [Place("the input", each.path, source_fs.type_name) for each in found]
    check_apart([*inputs, *others], [folder], fs.type_name)
    if fs.type_name == LOCAL:
        pattern, folder = os.path.realpath(pattern), os.path.realpath(folder)
    part = posixpath.join(folder, found[0].name, f"{0:015d}.{files.format}")
    if fs.type_name == source_fs.type_name and reads(pattern, part):
        message = f"{files.output} lies within {files.input}, so the next run would read its parts as input; "
        raise ConfigError(f"{message}use another --output.", "output")


def _run(
    missing: list[DatasetPart],
    actors: Actors,
    output: JobFolder,
    asked: tuple[JobFiles, OfflineTask, EngineConfig],
    schema: Schema | None,
) -> tuple[int, int]:
    """Score parts; return how many rows there were, and how many have an error."""
    agreement = ray.remote(_Agreement).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote(output)
    dataset = ray.data.from_items(
        [msgspec.json.encode(part).decode() for part in missing],
        override_num_blocks=min(len(missing), _MOST_BLOCKS),
    ).map_batches(
        _PartScorer,
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_args=(*asked, output, agreement, schema),
        **actors.options(),
    )
    return _consume(dataset)


def _consume(dataset: ray.data.Dataset) -> tuple[int, int]:
    """Run everything; return how many rows there were, and how many have an error."""
    rows = errors = 0
    for done in dataset.iter_rows():
        if done["failure"]:
            raise _failure(done["failure"])
        rows, errors = rows + done["rows"], errors + done["errors"]
    return rows, errors


# Ray hands exceptions on as text; actors return ours, so that the user reads one line.
def _describe(error: MisError) -> str:
    return json.dumps([type(error).__name__, error.message, getattr(error, "option", "")])


def _failure(described: str) -> MisError:
    kind, message, option = json.loads(described)
    if kind == ConfigError.__name__:
        return ConfigError(message, option)
    return ModelError(message) if kind == ModelError.__name__ else EngineUnavailable(message)


class _Agreement:
    """Lets actors on different machines agree on one type; what was agreed is in the note.

    Ray may start it again elsewhere: what it knows is in the folder.
    """

    def __init__(self, output: JobFolder) -> None:
        self._output = output

    def agree(self, dtype: str) -> tuple[str, str]:
        """Return the type of all parts, the given one if it is the first, and why there is none, or nothing."""
        try:
            return self._output.agree(dtype), ""
        except MisError as error:
            return "", _describe(error)


class _PartScorer:
    """The actor's part: read, score, write."""

    def __init__(
        self,
        files: JobFiles,
        asked: OfflineTask,
        config: EngineConfig,
        output: JobFolder,
        agreement: Any,
        schema: Schema | None,
    ) -> None:
        self._files = files
        self._schema = schema
        self._asked = asked
        self._output = output
        self._agreement = agreement
        self._host = Host(asked, config)
        logging.getLogger("mis_core").setLevel(logging.WARNING)

    async def __call__(self, batch: pa.Table) -> dict[str, list[Any]]:
        """Score the parts that the rows describe; return how many rows each has, or why there will be no more."""
        done: dict[str, list[Any]] = {"rows": [], "errors": [], "failure": []}
        for described in batch["item"].to_pylist():
            rows, failure = [], ""
            try:
                rows = await self._score(msgspec.json.decode(described, type=DatasetPart))
            except MisError as error:
                failure = _describe(error)
            done["rows"].append(len(rows))
            done["errors"].append(sum(row.error is not None for row in rows))
            done["failure"].append(failure)
        return done

    async def _score(self, part: DatasetPart) -> list[InputRow]:
        await self._check_type()
        fs, _ = file_system(self._files.input)
        rows = await asyncio.to_thread(read_rows, fs, part, self._asked)
        await self._host.score(rows)
        await asyncio.to_thread(self._publish, part, rows)
        return rows

    def _publish(self, part: DatasetPart, rows: list[InputRow]) -> None:
        content = self._asked.write_lines(rows) if self._schema is None else parquet_of(table_of(rows, self._schema))
        self._output.publish(part.name, content)

    async def _check_type(self) -> None:
        dtype = (await self._host.scorer()).dtype
        agreed, failure = await self._agreement.agree.remote(dtype)
        if failure:
            raise _failure(failure)
        if agreed != dtype:
            message = f"Other parts are made in {agreed}, but this machine computes in {dtype}; use --dtype {agreed}."
            raise ConfigError(message, "dtype")
