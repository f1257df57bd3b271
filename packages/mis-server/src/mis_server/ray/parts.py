"""Which files a run reads, and how they are cut into parts: by what the files are, never by who reads them.

A part is what is scored, written and resumed as one. Ray's own blocks cannot be that: where they are cut depends on the
cluster and on the run.
"""

import fnmatch
import hashlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import pyarrow as pa
import pyarrow.fs

from mis_core.errors import ConfigError
from mis_server.offline import tables, text
from mis_server.offline.asked import OfflineTask
from mis_server.offline.inputs import check_unchanged
from mis_server.offline.rows import InputRow

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", tables.SUFFIX)
MAX_EXPANDED_BYTES = 1024**3
"""A compressed file is one part, which an actor has in memory: one that expands to more is refused."""

_REFUSED = re.compile(r"\.(jsonl|parquet)\.(bz2|br|gz|lz4|lzma|lzo|snappy|sz|xz|Z|zip|zst)")

_READERS = 16  # footers read at once
_DIGESTED_BYTES = 32_768  # of either end of a file
_TAIL_BYTES = 65_536  # read at once while a line goes on behind its part


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """What is scored and written as one.

    Attributes:
        path: Of the file it is read from.
        name: Of the file it is written to, below the output and without suffix.
        begin: Its first byte, of JSON lines: lines that begin in it are its rows, and all lines of a compressed file;
            of Parquet, its first row, counted from the beginning of its first row group.
        end: The byte, or the row, behind its last.
        groups: Of Parquet, the row groups it is in.
        version: Size of the file in bytes, and when it was modified, in nanoseconds since 1970, 0 if unknown.
    """

    path: str
    name: str
    begin: int
    end: int
    groups: tuple[int, ...] = ()
    version: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the input.

    Attributes:
        path: As its file system has it.
        name: Relative to the folder that the input names.
        size: In bytes.
        modified_ns: When, in nanoseconds since 1970; 0 if the file system does not say.
    """

    path: str
    name: str
    size: int
    modified_ns: int


def sources(fs: pa.fs.FileSystem, pattern: str) -> list[Source]:
    """Return the JSONL and Parquet files that a path, a folder or a glob means, in order of their names.

    Raises:
        ConfigError: there are none, or they cannot be listed.
    """
    folder = _folder(pattern)
    try:
        if fs.get_file_info(pattern).type == pa.fs.FileType.File:
            folder = posixpath.dirname(pattern)
            found = [fs.get_file_info(pattern)]
        else:
            found = fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
    except OSError as error:
        raise ConfigError(f"{pattern} cannot be read: {error.strerror or error}.", "input") from None
    found = [info for info in found if info.type == pa.fs.FileType.File]
    has_its_name = pattern in (info.path for info in found)  # which may read as a glob
    meant = [info for info in found if _is_meant(info.path, folder, pattern, has_its_name)]
    files = [
        Source(info.path, posixpath.relpath(info.path, folder), *_version(info))
        for info in meant
        if info.path.endswith(SUFFIXES)
    ]
    if other := next((info.path for info in meant if _is_refused(info.path)), None):
        message = f"{other} cannot be read; compressed files must be {' or '.join(SUFFIXES[1:3])}."
        raise ConfigError(f"{message} Expand it, or compress it as one of these.", "input")
    if not files:
        raise ConfigError(f"{pattern} has no files whose names end in {' or '.join(SUFFIXES)}.", "input")
    return sorted(files, key=lambda each: each.name)


def _version(info: pa.fs.FileInfo) -> tuple[int, int]:
    return info.size, info.mtime_ns or 0


def reads(pattern: str, path: str) -> bool:
    """Return whether a path, a folder or a glob would mean a file at another path, if there were one."""
    folder = _folder(pattern)
    is_inside = posixpath.commonpath([folder, path]) == folder
    return is_inside and path.endswith(SUFFIXES) and _is_meant(path, folder, pattern, path == pattern)


def _folder(pattern: str) -> str:
    folder = pattern
    while any(each in folder for each in "*?["):
        folder = posixpath.dirname(folder)
    return folder


def _is_meant(path: str, folder: str, pattern: str, has_its_name: bool) -> bool:
    if any(part.startswith(("_", ".")) for part in posixpath.relpath(path, folder).split("/")):
        return False
    return folder == pattern or has_its_name or fnmatch.fnmatchcase(path, pattern)


def _is_refused(path: str) -> bool:
    return _REFUSED.search(path) is not None and not path.endswith(SUFFIXES)


def digest(fs: pa.fs.FileSystem, files: list[Source]) -> str:
    """Return a hash of the files' names, sizes, times, and bytes at either end, where Parquet has its statistics."""

    def ends(source: Source) -> bytes:
        with fs.open_input_file(source.path) as file:
            head = file.read(_DIGESTED_BYTES)
            file.seek(max(0, source.size - _DIGESTED_BYTES))
            return hashlib.blake2b(
                f"{source.name} {source.size} {source.modified_ns} ".encode() + head + file.read()
            ).digest()

    with ThreadPool(_READERS) as pool:
        return hashlib.blake2b(b"".join(pool.map(ends, files)), digest_size=16).hexdigest()


@dataclass(frozen=True)
class RunPlan:
    """What a run has to do.

    Attributes:
        parts: In order of their names.
        id_types: For each file its path, and the type of its ids: of JSON lines text; None where it has no ids.
    """

    parts: list[DatasetPart]
    id_types: list[tuple[str, pa.DataType | None]]


def plan(fs: pa.fs.FileSystem, files: list[Source], part_bytes: int, asked: OfflineTask) -> RunPlan:
    """Cut files into parts of about so many bytes, of Parquet uncompressed ones.

    Raises:
        ConfigError: a file is not what its suffix says.
    """
    with ThreadPool(_READERS) as pool:
        found = pool.map(partial(_plan, fs, part_bytes, asked), files)
    parts = [
        replace(part, version=(source.size, source.modified_ns))
        for source, each in zip(files, found, strict=True)
        for part in each.parts
    ]
    return RunPlan(parts, [named for each in found for named in each.id_types])


def _plan(fs: pa.fs.FileSystem, part_bytes: int, asked: OfflineTask, source: Source) -> RunPlan:
    if not source.name.endswith(tables.SUFFIX):
        return RunPlan(list(_text_parts(fs, source, part_bytes)), [(source.path, pa.string())])
    try:
        with fs.open_input_file(source.path) as file:
            parquet = tables.Parquet(file, source.path, "input", asked)
            return RunPlan(list(_parquet_parts(source, parquet.footer, part_bytes)), [(source.path, parquet.id_type)])
    except OSError as error:
        raise ConfigError(f"{source.path} cannot be read: {str(error).splitlines()[0]}", "input") from None


def _text_parts(fs: pa.fs.FileSystem, source: Source, part_bytes: int) -> Iterator[DatasetPart]:
    """Yield runs of bytes; of a compressed file, and of one without lines, one part."""
    with fs.open_input_file(source.path) as file:
        head = file.read(text.HEAD_BYTES)
        text.check_encoding(head, source.path, "input")
        end = source.size if text.is_compressed(head) else _end_of_lines(file, source.size)
    step = max(1, end) if text.is_compressed(head) else part_bytes
    for begin in range(0, max(1, end), step):
        yield DatasetPart(source.path, _name(source, begin), begin, min(begin + step, end))


def _end_of_lines(file: pa.NativeFile, end: int) -> int:
    """Return where the blank lines at the end begin, or a bit before."""
    while end:
        begin = max(0, end - _TAIL_BYTES)
        file.seek(begin)
        block = file.read(end - begin)
        kept = block.rstrip(text.SPACE)
        is_line = kept[-4:-3] == b"\n" or (begin == 0 and kept == text.BYTE_ORDER_MARK)
        if is_line and kept.endswith(text.BYTE_ORDER_MARK):
            kept = kept[:-3]
        if len(kept) == len(block):
            return end
        end = begin + len(kept)
    return 0


def _parquet_parts(source: Source, footer: Any, part_bytes: int) -> Iterator[DatasetPart]:
    """Yield slices of large row groups, and runs of small ones; of a file without rows, one part without any."""
    if not footer.num_rows:
        yield DatasetPart(source.path, _name(source, 0), 0, 0)
        return
    row, waiting = 0, []
    for number in range(footer.num_row_groups + 1):
        group = footer.row_group(number) if number < footer.num_row_groups else None
        if waiting and (group is None or sum(size for *_, size in waiting) + group.total_byte_size > part_bytes):
            begin, rows = waiting[0][1], sum(rows for _, _, rows, _ in waiting)
            yield DatasetPart(source.path, _name(source, begin), 0, rows, tuple(number for number, *_ in waiting))
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
                yield DatasetPart(source.path, name, begin, min(begin + step, group.num_rows), (number,))
        row += group.num_rows


def _name(source: Source, begin: int) -> str:
    return f"{source.name}/{begin:015d}"


def read_rows(fs: pa.fs.FileSystem, part: DatasetPart, asked: OfflineTask) -> list[InputRow]:
    """Return the rows of a part.

    Raises:
        ConfigError: the file cannot be read, or is not what it was when it was cut into parts.
    """
    with fs.open_input_file(part.path) as file:
        rows = _rows(file, part, asked)
    check_unchanged(part.path, _version(fs.get_file_info(part.path)), part.version, "input")
    return rows


def _rows(file: pa.NativeFile, part: DatasetPart, asked: OfflineTask) -> list[InputRow]:
    if not part.path.endswith(tables.SUFFIX):
        is_compressed = text.is_compressed(file.read(text.HEAD_BYTES))
        file.seek(0)
        lines = _expanded_lines(file, part) if is_compressed else _lines(file, part)
        return [asked.read_line(line) for line in lines]
    parquet = tables.Parquet(file, part.path, "input", asked)
    return list(parquet.rows(list(part.groups), part.begin, part.end))


def _expanded_lines(file: pa.NativeFile, part: DatasetPart) -> Iterator[bytes]:
    size = 0
    for line in text.Lines(file, part.path, "input"):
        size += len(line)
        if size > MAX_EXPANDED_BYTES:
            message = f"{part.path} expands to more than {MAX_EXPANDED_BYTES} bytes; expand it, or split it into files."
            raise ConfigError(message, "input")
        yield line


def _lines(file: pa.NativeFile, part: DatasetPart) -> list[bytes]:
    """Return the lines that begin in a part: after its first newline, or after one right before it.

    A line that is too long comes without its end.
    """
    file.seek(max(0, part.begin - 1))
    found = file.read(part.end - file.tell())
    if part.begin:
        newline = found.find(b"\n")
        if newline < 0:
            return []  # all of it is the middle of one line
        found = found[newline + 1 :]
    if found and not found.endswith(b"\n"):
        rest, size = [found], len(found) - found.rfind(b"\n")
        while size <= text.MAX_LINE_BYTES + 1 and (more := file.read(_TAIL_BYTES)):
            rest.append(more[: more.find(b"\n") + 1] or more)
            size += len(more)
            if b"\n" in more:
                break
        found = b"".join(rest)
    lines = found.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines
