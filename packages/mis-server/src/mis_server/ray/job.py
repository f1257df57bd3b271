"""`mis-server score --ray`: files to files on a cluster, resumed part by part.

A part is written under another name and then renamed, so a part that is there is whole, whatever was killed. A note in
the output says what it was made with, so that no run adds parts with another query, other labels or another model.
"""

import asyncio
import json
import logging
import os
import posixpath
import uuid
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import ray
import ray.data

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, EngineUnavailable, MisError, ModelError
from mis_server.offline.asked import Asked, decisive
from mis_server.offline.rows import Row, write_line
from mis_server.ray.actor import Host, for_actors
from mis_server.ray.dataset import Actors, answers
from mis_server.ray.parts import Part, digest, everywhere, file_system, parts, read_rows, sources

_NOTE, _SUCCESS, _UNFINISHED = "_job.json", "_SUCCESS", "_unfinished"
_MOST_BLOCKS = 20_000  # parts of larger runs share them


@dataclass(frozen=True, kw_only=True)
class Files:
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


def score_files(files: Files, asked: Asked, config: EngineConfig, actors: Actors, *, overwrite: bool = False) -> Counts:
    """Score on the cluster that `ray.init` has connected to what the output does not have yet.

    Args:
        files: What is read and written.
        asked: What is asked of every row.
        config: The engine's options.
        actors: How many score, and what each reserves.
        overwrite: Start over, whatever the output has.

    Raises:
        ConfigError: files cannot be read or written, or the output was made with other arguments.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: an engine ended again and again.
    """
    files = replace(files, input=everywhere(files.input), output=everywhere(files.output))
    fs, pattern = file_system(files.input)
    found = sources(fs, pattern)
    output = Output(files, decisive(asked, config) | {"part_bytes": files.part_bytes, "input": digest(fs, found)})
    output.begin(config.dtype, overwrite=overwrite)
    written = output.names()
    planned = parts(fs, found, files.part_bytes)
    missing = [part for part in planned if part.name not in written]
    if missing:
        agreement = ray.remote(_Agreement).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote(output)
        dataset = ray.data.from_items(
            [msgspec.json.encode(part).decode() for part in missing],
            override_num_blocks=min(len(missing), _MOST_BLOCKS),
        ).map_batches(
            _PartScorer,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(files, asked, for_actors(config), output, agreement),
            **actors.options(),
        )
        rows, errors = _consume(dataset)
    else:
        rows = errors = 0
    output.end()
    return Counts(rows, errors, len(missing), len(planned) - len(missing))


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


class Output:
    """The output's folder: its parts, and the note of what they were made with."""

    def __init__(self, files: Files, made_with: dict[str, Any]) -> None:
        self._folder = files.output
        self._suffix = f".{files.format}"
        self._made_with = json.loads(json.dumps(made_with | {"format": files.format}))
        self._run = uuid.uuid4().hex

    def begin(self, dtype: str, *, overwrite: bool) -> None:
        """Write the note, or check the one that is there.

        Raises:
            ConfigError: the folder cannot be written, was made with other arguments, or is not ours.
        """
        try:
            fs, folder = file_system(self._folder)
            fs.create_dir(folder, recursive=True)
            note = self.note()
            if note is None and fs.get_file_info(pa.fs.FileSelector(folder)):
                raise ConfigError(f"{self._folder} has files, but no {_NOTE}; use another --output.", "output")
            if overwrite:
                fs.delete_dir_contents(folder)
                note = None
            if note is not None:
                self._check(note, dtype)
            self._write_note({**self._made_with, "dtype": None if note is None else note["dtype"], "run": self._run})
        except OSError as error:
            message = f"{self._folder} cannot be written: {error.strerror or error}."
            raise ConfigError(message, "output") from None

    def _check(self, note: dict[str, Any], dtype: str) -> None:
        others = [name for name, value in self._made_with.items() if note.get(name) != value]
        advice = "use another --output, or --overwrite."
        if others:
            message = f"{self._folder} was made with other values of {', '.join(others)}; {advice}"
            raise ConfigError(message, "output")
        if note["dtype"] is not None and dtype not in ("auto", note["dtype"]):
            message = f"{self._folder} was made in {note['dtype']}, and this run computes in {dtype}; {advice}"
            raise ConfigError(message, "dtype")

    def agree(self, dtype: str) -> str:
        """Return the type that all parts are made in: the given one, if the note names none yet."""
        note = self.note()
        if note is None:
            return dtype
        if note["dtype"] is None:
            self._write_note({**note, "dtype": dtype})
            return dtype
        return note["dtype"]

    def note(self) -> dict[str, Any] | None:
        """Return what the folder was made with, None if there is no note."""
        fs, folder = file_system(self._folder)
        path = posixpath.join(folder, _NOTE)
        if fs.get_file_info(path).type != pa.fs.FileType.File:
            return None
        with fs.open_input_file(path) as file:
            return json.loads(file.read())

    def _write_note(self, note: dict[str, Any]) -> None:
        self._write(_NOTE, json.dumps(note, indent=1).encode())

    def names(self) -> set[str]:
        """Return the names of the parts that are there."""
        fs, folder = file_system(self._folder)
        found = fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
        names = (posixpath.relpath(info.path, folder) for info in found if info.type == pa.fs.FileType.File)
        return {name.removesuffix(self._suffix) for name in names if not name.startswith("_")}

    def publish(self, part: Part, content: bytes) -> None:
        """Write a part, unless another run has taken the folder over meanwhile.

        Raises:
            ConfigError: it has; this run is over.
        """
        note = self.note()
        if note is None or note["run"] != self._run:
            raise ConfigError(f"{self._folder} is written by another run now; this one ends.", "output")
        self._write(part.name + self._suffix, content)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file that is there as a whole or not at all."""
        fs, folder = file_system(self._folder)
        path, unfinished = posixpath.join(folder, name), posixpath.join(folder, _UNFINISHED, uuid.uuid4().hex)
        for each in (path, unfinished):
            fs.create_dir(posixpath.dirname(each), recursive=True)
        with fs.open_output_stream(unfinished, compression=None) as file:
            file.write(content)
        if isinstance(fs, pa.fs.LocalFileSystem):  # or a machine that loses its power might keep the name alone
            descriptor = os.open(unfinished, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fs.move(unfinished, path)

    def end(self) -> None:
        """Say that all parts are there."""
        fs, folder = file_system(self._folder)
        self._write(_SUCCESS, b"")
        fs.delete_dir(posixpath.join(folder, _UNFINISHED))


class _Agreement:
    """Lets actors on different machines agree on one type; what was agreed is in the note."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def agree(self, dtype: str) -> str:
        """Return the type of all parts, the given one if it is the first."""
        return self._output.agree(dtype)


class _PartScorer:
    """The actor's part: read, score, write."""

    def __init__(self, files: Files, asked: Asked, config: EngineConfig, output: Output, agreement: Any) -> None:
        self._files = files
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
                rows = await self._score(msgspec.json.decode(described, type=Part))
            except MisError as error:
                failure = _describe(error)
            done["rows"].append(len(rows))
            done["errors"].append(sum(row.error is not None for row in rows))
            done["failure"].append(failure)
        return done

    async def _score(self, part: Part) -> list[Row]:
        await self._check_type()
        fs, _ = file_system(self._files.input)
        rows = await asyncio.to_thread(read_rows, fs, part, self._asked.query)
        await self._host.score(rows)
        await asyncio.to_thread(self._publish, part, rows)
        return rows

    def _publish(self, part: Part, rows: list[Row]) -> None:
        self._output.publish(part, encode(part, rows, self._files.format))

    async def _check_type(self) -> None:
        dtype = (await self._host.scorer()).dtype
        agreed = await self._agreement.agree.remote(dtype)
        if agreed != dtype:
            message = f"Other parts are made in {agreed}, and this machine computes in {dtype}; use --dtype {agreed}."
            raise ConfigError(message, "dtype")


def encode(part: Part, rows: list[Row], format: str) -> bytes:
    """Return the file of a part: JSON lines as `mis-server score` writes them, or Parquet."""
    if format == "jsonl":
        return b"".join(map(write_line, rows))
    ids = [row.id for row in rows]
    if not part.groups:  # JSON's ids may be of several types, a column's may not
        ids = [each if each is None or isinstance(each, str) else json.dumps(each) for each in ids]
    columns = answers(rows) | ({} if ids.count(None) == len(ids) else {"id": pa.array(ids)})
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()
