"""A folder of parts: what it was made with, and what is in it.

A part is written under another name and then renamed, so a part that is there is whole, whatever was killed. A note in
the folder says what it was made with, so that no run adds parts with another query, other labels or another model. It
also proves that the folder is ours: without it nothing is written there, and files by other names are never removed.
"""

import contextlib
import json
import os
import posixpath
import re
import uuid
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from mis_core.errors import ConfigError
from mis_server.offline.output import check_same_type, check_writable, taken_over

_NOTE, _SUCCESS, _UNFINISHED = "_job.json", "_SUCCESS", "_unfinished"
_PART = r"(.+\.(jsonl|jsonl\.gz|jsonl\.zst|parquet)/)?\d{15}\.(jsonl|parquet)"
_OURS = re.compile(rf"{_NOTE}|{_SUCCESS}|{_UNFINISHED}/[0-9a-f]{{32}}|{_PART}")
_OF_THE_RUN = {"dtype", "run"}
_NAMED = 3  # of the files that are in the way
_REMOVERS = 16  # at work at once
_VERSION = 2  # of what parts have in them; 1, in which a note names none, gave ids of one output several types


def everywhere(path: str) -> str:
    """Return a path or URI that means the same in every working directory."""
    return path if "://" in path else str(Path(path).absolute())


def file_system(path: str) -> tuple[pa.fs.FileSystem, str]:
    """Return the file system of a path or URI such as `s3://bucket/folder`, and the path in it."""
    return pa.fs.FileSystem.from_uri(everywhere(path))


def _is_link(fs: pa.fs.FileSystem, path: str) -> bool:
    return isinstance(fs, pa.fs.LocalFileSystem) and Path(path).is_symlink()


class JobFolder:
    """The output's folder: its parts, and the note of what they were made with."""

    def __init__(self, folder: str, format: str, made_with: dict[str, Any]) -> None:
        self._folder = folder
        self._suffix = f".{format}"
        self._made_with = json.loads(json.dumps(made_with | {"format": format, "version": _VERSION}))
        self._run = ""
        self._run_before: str | None = None
        self._overwrite = False

    def check(self, dtype: str, *, overwrite: bool) -> set[str]:
        """Return the names of the parts that stay. Nothing is written or removed yet.

        Raises:
            ConfigError: the folder cannot be written, was made with other arguments, or is not ours.
        """
        self._run, self._overwrite = uuid.uuid4().hex, overwrite
        with self._using() as (fs, folder):
            if isinstance(fs, pa.fs.LocalFileSystem):
                check_writable(next(each for each in (Path(folder), *Path(folder).parents) if os.path.lexists(each)))
            note = self.note()
            if note is None:
                if fs.get_file_info(pa.fs.FileSelector(folder, allow_not_found=True)):
                    message = f"{self._folder} has files, but no {_NOTE} of this command; use another --output, or "
                    raise ConfigError(f"{message}remove them yourself.", "output")
                return set()
            self._run_before = note["run"]
            if overwrite:
                self._listed(fs, folder)
                return set()
            self._check(note)
            self.check_type(dtype)
            return self.names()

    def begin(self) -> dict[str, Any]:
        """Remove what starts over, and write the note, unless that is done; return the note.

        Raises:
            ConfigError: the folder cannot be written, or another run has begun since `check`.
        """
        with self._using() as (fs, folder):
            note = self.note()
            run = None if note is None else note["run"]
            if note is not None and run == self._run:
                return note
            if run not in (None, self._run_before):
                raise taken_over(self._folder)
            fs.create_dir(folder, recursive=True)
            if self._overwrite and note is not None:
                self._clear(fs, folder)
                note = None
            note = {**self._made_with, "dtype": None if note is None else note["dtype"], "run": self._run}
            self._write_note(note)
            return note

    def _listed(self, fs: pa.fs.FileSystem, folder: str) -> tuple[dict[str, str], set[str]]:
        """Return the paths of our files by their names, and those of folders; refuse if there is anything else."""
        found = fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
        folders = {i.path for i in found if i.type == pa.fs.FileType.Directory and not _is_link(fs, i.path)}
        files = {posixpath.relpath(i.path, folder): i.path for i in found if i.path not in folders}
        others = sorted(name for name, path in files.items() if not _OURS.fullmatch(name) or _is_link(fs, path))
        if others:
            named = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if others[_NAMED:] else "")
            message = f"{self._folder} has files that this command did not write: {named}; use another --output, or "
            raise ConfigError(f"{message}remove them yourself.", "output")
        return files, folders

    def _clear(self, fs: pa.fs.FileSystem, folder: str) -> None:
        """Remove what this command wrote, the note last; refuse if there is anything else."""
        files, folders = self._listed(fs, folder)
        with ThreadPool(_REMOVERS) as pool:
            pool.map(fs.delete_file, [path for name, path in files.items() if name != _NOTE])
        if isinstance(fs, pa.fs.LocalFileSystem):  # elsewhere there are none
            for each in sorted(folders, reverse=True):
                with contextlib.suppress(OSError):  # somebody has put something there
                    Path(each).rmdir()
        fs.delete_file(files[_NOTE])

    def _check(self, note: dict[str, Any]) -> None:
        names = {**self._made_with, **note}.keys() - _OF_THE_RUN  # some are there only where they are given
        others = sorted(name for name in names if note.get(name) != self._made_with.get(name))
        advice = "use another --output, or --overwrite."
        if "version" in others:
            message = f"{self._folder} was begun by another version of mis-server: finish it with that one, {advice}"
            raise ConfigError(message, "output")
        if others:
            message = f"{self._folder} was made with other values of {', '.join(others)}; {advice}"
            raise ConfigError(message, "output")

    def check_type(self, dtype: str) -> None:
        """Refuse to add parts that another type would be computed in.

        Raises:
            ConfigError: the note names another type, and its parts stay.
        """
        if not self._overwrite and (note := self.note()) is not None:
            check_same_type(self._folder, note["dtype"], dtype)

    def agree(self, dtype: str) -> str:
        """Return the type that all parts are made in: the given one, if none is agreed on yet. The first call begins.

        Raises:
            ConfigError: as `begin`.
        """
        with self._using():
            note = self.begin()
            if note["dtype"] is None:
                note["dtype"] = dtype
                self._write_note(note)
            return note["dtype"]

    def void(self) -> None:
        """Say that the parts belong to no input, so that nothing continues them."""
        with self._using():
            if (note := self.note()) is not None and note["run"] == self._run:
                self._write_note({**note, "input": None})

    def note(self) -> dict[str, Any] | None:
        """Return what the folder was made with, None if there is no note of ours."""
        fs, folder = file_system(self._folder)
        path = posixpath.join(folder, _NOTE)
        if fs.get_file_info(path).type != pa.fs.FileType.File:
            return None
        with fs.open_input_file(path) as file:
            try:
                note = json.loads(file.read())
            except ValueError:
                return None
        return note if isinstance(note, dict) and {"dtype", "run"} <= note.keys() else None

    def _write_note(self, note: dict[str, Any]) -> None:
        self._write(_NOTE, json.dumps(note, indent=1).encode())

    def names(self) -> set[str]:
        """Return the names of the parts that are there."""
        with self._using() as (fs, folder):
            found = fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
        names = (posixpath.relpath(info.path, folder) for info in found if info.type == pa.fs.FileType.File)
        return {name.removesuffix(self._suffix) for name in names if not name.startswith("_")}

    def column(self, name: str, column: str) -> pa.ChunkedArray:
        """Return a column of a Parquet part."""
        with self._using() as (fs, folder):
            path = posixpath.join(folder, name + self._suffix)
            return pa.parquet.read_table(path, columns=[column], filesystem=fs)[column]

    def publish(self, name: str, content: bytes) -> None:
        """Write a part, unless another run has taken the folder over meanwhile.

        Raises:
            ConfigError: it has; this run is over.
        """
        with self._using():
            note = self.note()
            if note is None or note["run"] != self._run:
                raise taken_over(self._folder)
            self._write(name + self._suffix, content)

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
        with self._using() as (fs, folder):
            self._write(_SUCCESS, b"")
            fs.delete_dir(posixpath.join(folder, _UNFINISHED))

    @contextlib.contextmanager
    def _using(self) -> Iterator[tuple[pa.fs.FileSystem, str]]:
        """Yield the file system and the folder's path in it; say in a sentence what goes wrong there."""
        try:
            yield file_system(self._folder)
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0].rstrip(".")
            raise ConfigError(f"{self._folder} cannot be read or written: {reason}.", "output") from None
