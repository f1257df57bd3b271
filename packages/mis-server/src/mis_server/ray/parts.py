"""Which files a run reads, and how they are cut into parts: by what the files are, never by who reads them.

A part is what is scored, written and resumed as one. Ray's own blocks cannot be that: where they are cut depends on the
cluster and on the run.
"""

import fnmatch
import hashlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import pyarrow as pa
import pyarrow.fs

from mis_core.errors import ConfigError
from mis_server.offline import tables
from mis_server.offline.rows import Row, read_line

SUFFIXES = (".jsonl", tables.SUFFIX)

_READERS = 16  # footers read at once
_DIGESTED_BYTES = 32_768  # of either end of a file
_TAIL_BYTES = 65_536  # read at once while a line goes on behind its part


@dataclass(frozen=True, slots=True)
class Part:
    """What is scored and written as one.

    Attributes:
        path: Of the file it is read from.
        name: Of the file it is written to, below the output and without suffix.
        begin: Its first byte, of JSON lines: lines that begin in it are its rows; of Parquet, its first row, counted
            from the beginning of its first row group.
        end: The byte, or the row, behind its last.
        groups: Of Parquet, the row groups it is in.
    """

    path: str
    name: str
    begin: int
    end: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the input.

    Attributes:
        path: As its file system has it.
        name: Relative to the folder that the input names.
        size: In bytes.
    """

    path: str
    name: str
    size: int


def sources(fs: pa.fs.FileSystem, pattern: str) -> list[Source]:
    """Return the JSONL and Parquet files that a path, a folder or a glob means, in order of their names.

    Raises:
        ConfigError: there are none, or they cannot be listed.
    """
    folder = pattern
    while any(each in folder for each in "*?["):
        folder = posixpath.dirname(folder)
    try:
        if fs.get_file_info(pattern).type == pa.fs.FileType.File:
            folder = posixpath.dirname(pattern)
            found = [fs.get_file_info(pattern)]
        else:
            found = fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
    except OSError as error:
        raise ConfigError(f"{pattern} cannot be read: {error.strerror or error}.", "input") from None
    files = [
        Source(info.path, posixpath.relpath(info.path, folder), info.size)
        for info in found
        if info.type == pa.fs.FileType.File and info.path.endswith(SUFFIXES)
    ]
    files = [each for each in files if not any(part.startswith(("_", ".")) for part in each.name.split("/"))]
    if folder != pattern and pattern not in (each.path for each in files):
        files = [each for each in files if fnmatch.fnmatchcase(each.path, pattern)]
    if not files:
        raise ConfigError(f"{pattern} has no files whose names end in {' or '.join(SUFFIXES)}.", "input")
    return sorted(files, key=lambda each: each.name)


def digest(fs: pa.fs.FileSystem, files: list[Source]) -> str:
    """Return a hash of the files' names, sizes, and bytes at either end, where Parquet has its statistics."""

    def ends(source: Source) -> bytes:
        with fs.open_input_file(source.path) as file:
            head = file.read(_DIGESTED_BYTES)
            file.seek(max(0, source.size - _DIGESTED_BYTES))
            return hashlib.blake2b(f"{source.name} {source.size} ".encode() + head + file.read()).digest()

    with ThreadPool(_READERS) as pool:
        return hashlib.blake2b(b"".join(pool.map(ends, files)), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Plan:
    """What a run has to do.

    Attributes:
        parts: In order of their names.
        id_types: For each file its path, and the type of its ids: of JSON lines text; None where it has no ids.
    """

    parts: list[Part]
    id_types: list[tuple[str, pa.DataType | None]]


def plan(fs: pa.fs.FileSystem, files: list[Source], part_bytes: int) -> Plan:
    """Cut files into parts of about so many bytes, of Parquet uncompressed ones.

    Raises:
        ConfigError: a file is not what its suffix says.
    """
    with ThreadPool(_READERS) as pool:
        found = pool.map(partial(_plan, fs, part_bytes), files)
    return Plan([part for each in found for part in each.parts], [named for each in found for named in each.id_types])


def _plan(fs: pa.fs.FileSystem, part_bytes: int, source: Source) -> Plan:
    if not source.name.endswith(tables.SUFFIX):
        begins = range(0, max(1, source.size), part_bytes)  # of an empty file, one part without lines
        cut = [Part(source.path, _name(source, begin), begin, min(begin + part_bytes, source.size)) for begin in begins]
        return Plan(cut, [(source.path, pa.string())])
    try:
        with fs.open_input_file(source.path) as file:
            parquet = tables.Parquet(file, source.path, "input")
            return Plan(list(_parquet_parts(source, parquet.footer, part_bytes)), [(source.path, parquet.id_type)])
    except OSError as error:
        raise ConfigError(f"{source.path} cannot be read: {str(error).splitlines()[0]}", "input") from None


def _parquet_parts(source: Source, footer: Any, part_bytes: int) -> Iterator[Part]:
    """Yield slices of large row groups, and runs of small ones; of a file without rows, one part without any."""
    if not footer.num_rows:
        yield Part(source.path, _name(source, 0), 0, 0)
        return
    row, waiting = 0, []
    for number in range(footer.num_row_groups + 1):
        group = footer.row_group(number) if number < footer.num_row_groups else None
        if waiting and (group is None or sum(size for *_, size in waiting) + group.total_byte_size > part_bytes):
            begin, rows = waiting[0][1], sum(rows for _, _, rows, _ in waiting)
            yield Part(source.path, _name(source, begin), 0, rows, tuple(number for number, *_ in waiting))
            waiting = []
        if group is None:
            return
        size = group.total_byte_size
        if size <= part_bytes:
            waiting.append((number, row, group.num_rows, size))
        else:
            step = max(1, group.num_rows * part_bytes // size)
            for begin in range(0, group.num_rows, step):
                name = _name(source, row + begin)
                yield Part(source.path, name, begin, min(begin + step, group.num_rows), (number,))
        row += group.num_rows


def _name(source: Source, begin: int) -> str:
    return f"{source.name}/{begin:015d}"


def read_rows(fs: pa.fs.FileSystem, part: Part, query: str | None) -> list[Row]:
    """Return the rows of a part; `query` is for rows without their own."""
    with fs.open_input_file(part.path) as file:
        if not part.path.endswith(tables.SUFFIX):
            return [read_line(line, query) for line in _lines(file, part)]
        parquet = tables.Parquet(file, part.path, "input")
        return list(parquet.rows(list(part.groups), part.begin, part.end, query))


def _lines(file: pa.NativeFile, part: Part) -> list[bytes]:
    """Return the lines that begin in a part: behind its first newline, or behind one right before it."""
    file.seek(max(0, part.begin - 1))
    text = file.read(part.end - file.tell())
    if part.begin:
        newline = text.find(b"\n")
        if newline < 0:
            return []  # all of it is the middle of one line
        text = text[newline + 1 :]
    if text and not text.endswith(b"\n"):
        rest = [text]
        while b"\n" not in rest[-1] or len(rest) == 1:
            more = file.read(_TAIL_BYTES)
            if not more:
                break
            rest.append(more)
        else:
            rest[-1] = rest[-1][: rest[-1].index(b"\n") + 1]
        text = b"".join(rest)
    lines = text.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines
