"""The output of a job: the lines that are there, what they were made with, and the lines that follow.

A file is resumed, and removed by `--overwrite`, only if the note beside it proves that this command wrote it.
"""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from mis_core.errors import ConfigError
from mis_server.offline.rows import ERROR, Row

STANDARD_OUTPUT = "-"
NOTE_SUFFIX = ".job"

ToLines = Callable[[list[Row]], bytes]

_NOTE = re.compile(rb"[0-9a-f]{32} [a-z0-9]*")  # a fingerprint and a type
_NOTE_BYTES = 64  # no note has more


class Output(Protocol):
    """Where lines of scores go."""

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Return how many lines are there, and how many of them are errors."""
        ...

    def check_type(self, dtype: str) -> None:
        """Refuse to add lines that another type would be computed in."""
        ...

    def opened(self, dtype: str) -> contextlib.AbstractContextManager[None]:
        """Open it to append lines that are computed in a type."""
        ...

    def append(self, rows: list[Row]) -> None:
        """Write rows that have their scores or their errors."""
        ...


class Stream:
    """An output that keeps nothing: standard output, a pipe or a device. It has no note and is not resumed."""

    def __init__(self, name: str, lines: ToLines, file: BinaryIO | None = None) -> None:
        """Take its name, what makes lines of rows, and the file if it is open already."""
        self._name = name
        self._lines = lines
        self._file = file

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Return that nothing is there."""
        return 0, 0

    def check_type(self, dtype: str) -> None:
        """Allow any."""

    @contextlib.contextmanager
    def opened(self, dtype: str) -> Iterator[None]:
        """Open it."""
        with _writing(self._name):
            self._file = self._file or Path(self._name).open("wb")  # noqa: SIM115 - below
        with self._file:
            yield

    def append(self, rows: list[Row]) -> None:
        """Write lines, for the next program to read."""
        assert self._file is not None, "opened"
        with _writing(self._name):
            self._file.write(self._lines(rows))
            self._file.flush()


class OutputFile:
    """A file, and the note of what it was made with."""

    def __init__(self, path: Path, fingerprint: str, lines: ToLines) -> None:
        self._path = path
        self._lines = lines
        self._note = note_of(path)
        self._fingerprint = fingerprint
        self._made_in = ""
        self._starts_over = False
        self._file: BinaryIO | None = None

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Cut off what an interruption left half written; return how many lines there are, and how many are errors.

        Raises:
            ConfigError: the file was made with other arguments, or is not ours, or cannot be read.
        """
        lines = errors = complete = 0
        with _writing(str(self._path)):
            note = self._check_ours()
            self._starts_over = overwrite or not self._path.exists()
            if self._starts_over or not note:
                return 0, 0
            made_of, _, self._made_in = note.partition(" ")
            if made_of != self._fingerprint:
                message = f"{self._path} was made with other arguments or files; use another --output, or --overwrite."
                raise ConfigError(message, "output")
            with self._path.open("rb+") as file:
                for row in file:
                    if not row.endswith(b"\n"):
                        break
                    lines, errors, complete = lines + 1, errors + row.startswith(ERROR), complete + len(row)
                file.truncate(complete)
        return lines, errors

    def check_type(self, dtype: str) -> None:
        """Refuse to resume in another type, which another machine may choose: scores would differ between lines.

        Raises:
            ConfigError: the lines that are there were computed in another type.
        """
        if self._made_in and dtype not in ("auto", self._made_in):
            message = f"{self._path} was made in {self._made_in}, and this run computes in {dtype}; use "
            raise ConfigError(f"{message}--dtype {self._made_in}, another --output, or --overwrite.", "dtype")

    @contextlib.contextmanager
    def opened(self, dtype: str) -> Iterator[None]:
        """Open the file to append to it; a type that is not known yet is empty."""
        with _writing(str(self._path)):
            if self._starts_over:  # the old note goes last: whatever ends this run, a file has its own
                self._path.unlink(missing_ok=True)
            self._note.write_text(f"{self._fingerprint} {dtype}")
            self._file = self._path.open("ab")
        with self._file:
            yield

    def append(self, rows: list[Row]) -> None:
        """Write lines, so that they stay whatever ends the run."""
        assert self._file is not None, "opened"
        with _writing(str(self._path)):
            self._file.write(self._lines(rows))
            self._file.flush()

    def _check_ours(self) -> str:
        """Return the note, empty if there is nothing; refuse files of others."""
        if self._path.is_dir():
            raise ConfigError(f"{self._path} is a folder; name a file.", "output")
        note = b""
        if self._note.exists():
            with self._note.open("rb") as file:
                note = file.read(_NOTE_BYTES)
            if not _NOTE.fullmatch(note):
                message = f"{self._note} is not a note of this command, which writes one there; "
                raise ConfigError(f"{message}use another --output, or remove that file yourself.", "output")
        elif self._path.exists() and self._path.stat().st_size:
            message = f"{self._path} exists, and no note {self._note.name} proves that this command wrote it; "
            raise ConfigError(f"{message}use another --output, or remove that file yourself.", "output")
        return note.decode()


def note_of(path: Path) -> Path:
    """Return where the note of an output is."""
    return path.with_name(path.name + NOTE_SUFFIX)


@contextlib.contextmanager
def output_of(name: str, fingerprint: str, lines: ToLines) -> Iterator[Output]:
    """Yield an output by its name: `-` for standard output, or the path of a file, pipe or device."""
    if name == STANDARD_OUTPUT:
        with _standard_output() as file:
            yield Stream("standard output", lines, file)
    elif _is_kept(Path(name)):
        yield OutputFile(Path(name), fingerprint, lines)
    else:
        yield Stream(name, lines)


def _is_kept(path: Path) -> bool:
    """Return whether a path is a file's, or a folder's, or nobody's yet: not a pipe's or a device's."""
    mode = path.stat().st_mode if path.exists() else stat.S_IFREG
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


@contextlib.contextmanager
def _writing(name: str) -> Iterator[None]:
    """Say in a sentence that an output cannot be written. That a reader has gone is no fault of ours to report."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}.", "output") from None


@contextlib.contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    """Yield standard output for scores alone: whatever else this process and its children print is an error's."""
    sys.stdout.flush()
    scores = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(scores, "wb", closefd=False) as file:
            yield file
    finally:
        os.dup2(scores, 1)
        os.close(scores)
