"""The output of a job: the lines that are there, what they were made with, and the lines that follow.

A file is resumed, and removed by `--overwrite`, only if the note beside it proves that this command wrote it.
"""

import asyncio
import contextlib
import errno
import fcntl
import io
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mis_core.errors import ConfigError
from mis_server.offline.asked import ERROR
from mis_server.offline.places import is_kept
from mis_server.offline.rows import InputRow

STANDARD_OUTPUT = "-"
NOTE_SUFFIX = ".job"

ToLines = Callable[[list[InputRow]], bytes]

_NOTE = re.compile(rb"[0-9a-f]{32} [a-z0-9]*")  # a fingerprint and a type
_NOTE_BYTES = 64  # no note has more
_ATOMIC_BYTES = 4096  # that a pipe which takes more takes at once


class Output(ABC):
    """Where answers go. What is defined here fits an output that keeps nothing, and so is not resumed."""

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Return how many rows are there, and how many of them are errors."""
        return 0, 0

    def check_type(self, dtype: str) -> None:  # noqa: B027 - allows any
        """Refuse to add rows that another type would be computed in.

        Raises:
            ConfigError: the rows that are there were computed in another type, which another machine may choose.
        """

    def opened(self, dtype: str) -> contextlib.AbstractContextManager[None]:
        """Open it to append rows that are computed in a type; a type that is not known yet is empty."""
        return contextlib.nullcontext()

    def void(self) -> None:  # noqa: B027 - is not continued
        """Say that what is there belongs to no input, so that nothing continues it."""

    @abstractmethod
    async def append(self, rows: list[InputRow]) -> None:
        """Write rows that have their answers or their errors."""


class Stream(Output):
    """Standard output, a pipe or a device."""

    def __init__(self, name: str, lines: ToLines, file: io.FileIO) -> None:
        """Take its name, what makes lines of rows, and the file, which is open."""
        self._name = name
        self._lines = lines
        self._file = file

    async def append(self, rows: list[InputRow]) -> None:
        """Write lines, for the next program to read; while it does not, others have the event loop."""
        left = memoryview(self._lines(rows))
        with _writing(self._name):
            while left:
                await self._takes_more()
                left = left[self._file.write(left[:_ATOMIC_BYTES]) :]

    async def _takes_more(self) -> None:
        """Wait until a write of a few bytes would not block."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_writer(self._file, ready.set)
        except PermissionError:  # of a file and of some devices, which always take more
            return
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._file)


class OutputFile(Output):
    """A file, and the note of what it was made with, which is locked meanwhile."""

    def __init__(self, path: Path, fingerprint: str, lines: ToLines, closing: contextlib.ExitStack) -> None:
        """Take the path, the digest of all that lines depend on, what makes lines of rows, and what closes files."""
        self._path = path
        self._lines = lines
        self._note = note_of(path)
        self._fingerprint = fingerprint
        self._closing = closing
        self._made_in = ""
        self._is_ours = self._starts_over = False
        self._complete = 0  # bytes
        self._file: BinaryIO | None = None
        self._locked: io.FileIO | None = None

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Cut off what an interruption left half written; return how many lines there are, and how many are errors.

        Raises:
            ConfigError: the file was made with other arguments, or is not ours, or cannot be read or written.
        """
        lines = errors = 0
        with _writing(str(self._path)):
            note = self._check_ours()
            check_writable(self._path.parent)
            self._is_ours = bool(note)
            self._starts_over = overwrite or not self._path.exists()
            if self._is_ours:
                self._lock()
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
                    lines, errors = lines + 1, errors + row.startswith(ERROR)
                    self._complete += len(row)
                file.truncate(self._complete)
        return lines, errors

    def check_type(self, dtype: str) -> None:
        """Refuse another type: scores would differ between lines."""
        check_same_type(self._path, self._made_in, dtype)

    @contextlib.contextmanager
    def opened(self, dtype: str) -> Iterator[None]:
        """Open the file."""
        with _writing(str(self._path)):
            self._lock()
            if self._starts_over and self._is_ours:
                self._empty()  # before the old note goes: whatever ends this run, a file has its own
            if self._path.exists() and self._path.stat().st_size != self._complete:
                raise taken_over(self._path)
            self._file = self._path.open("ab")  # a link stays one
            self._write_note(self._fingerprint, dtype or self._made_in)
        with self._file:
            yield

    def void(self) -> None:
        """Have the note say so."""
        with _writing(str(self._path)):
            self._write_note("0" * len(self._fingerprint), self._made_in)

    async def append(self, rows: list[InputRow]) -> None:
        """Write lines, so that they stay whatever ends the run."""
        assert self._file is not None, "opened"
        with _writing(str(self._path)):
            self._file.write(self._lines(rows))
            self._file.flush()

    def _empty(self) -> None:
        """Remove the old lines, but no link that somebody made to where they are."""
        if self._path.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self._path, 0)
        else:
            self._path.unlink(missing_ok=True)

    def _lock(self) -> None:
        """Keep other runs away until this one ends."""
        if self._locked is not None:
            return
        self._note.touch()
        self._locked = self._closing.enter_context(self._note.open("rb+", buffering=0))
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken_over(self._path) from None
        except OSError:  # this file system has no locks
            return

    def _write_note(self, fingerprint: str, dtype: str) -> None:
        assert self._locked is not None, "locked"
        self._locked.seek(0)
        self._locked.truncate(self._locked.write(f"{fingerprint} {dtype}".encode()))

    def _check_ours(self) -> str:
        """Return the note, empty if there is nothing; refuse files of others."""
        if self._path.is_dir():
            raise ConfigError(f"{self._path} is a folder; name a file.", "output")
        note = b""
        if self._note.exists():
            with self._note.open("rb") as file:
                note = file.read(_NOTE_BYTES)
        if note:
            if not _NOTE.fullmatch(note):
                message = f"{self._note} was not written by this command, which keeps a note there; "
                raise ConfigError(f"{message}use another --output, or remove that file yourself.", "output")
        elif self._path.exists() and self._path.stat().st_size:
            message = f"{self._path} exists, but no note {self._note.name} shows that this command wrote it; "
            raise ConfigError(f"{message}use another --output, or remove that file yourself.", "output")
        return note.decode()


def note_of(path: Path) -> Path:
    """Return where the note of an output is."""
    return path.with_name(path.name + NOTE_SUFFIX)


@contextlib.contextmanager
def output_of(name: str, fingerprint: str, lines: ToLines) -> Iterator[Output]:
    """Yield an output by its name: `-` for standard output, or the path of a file, pipe or device."""
    with contextlib.ExitStack() as closing:
        if is_standard_output(name):
            yield Stream("standard output", lines, closing.enter_context(_standard_output()))
        elif is_kept(Path(name)):
            yield OutputFile(Path(name), fingerprint, lines, closing)
        else:
            # Outside of an event loop, where Ctrl-C would wait for somebody to read.
            with _writing(name):
                file = closing.enter_context(Path(name).open("wb", buffering=0))
            yield Stream(name, lines, file)


def is_standard_output(name: str) -> bool:
    """Return whether an output is standard output."""
    return name in (STANDARD_OUTPUT, "/dev/stdout")


def check_same_type(name: str | Path, made_in: str | None, dtype: str) -> None:
    """Refuse to add to an output what another type than its own would be computed in; none is known yet if it is empty.

    Raises:
        ConfigError: it would.
    """
    if made_in and dtype not in ("auto", made_in):
        message = f"{name} was made in {made_in}, but this run computes in {dtype}; use --dtype {made_in}, another "
        raise ConfigError(f"{message}--output, or --overwrite.", "dtype")


def taken_over(name: str | Path) -> ConfigError:
    """Return the error of a run whose output another run has begun to write."""
    return ConfigError(f"Another run is writing {name} now; this one ends.", "output")


def check_writable(folder: Path) -> None:
    """Refuse a folder that no file can be made in.

    Raises:
        OSError: says why.
    """
    os.stat(os.path.join(folder, ""))  # noqa: PTH116, PTH118 - which says that it is none
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


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
def _standard_output() -> Iterator[io.FileIO]:
    """Yield standard output for scores alone: whatever else this process and its children print is an error's."""
    if sys.stdout is None:
        raise ConfigError("standard output is closed; name a file.", "output")
    sys.stdout.flush()
    scores = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(scores, "wb", buffering=0, closefd=False) as file:
            yield file
    finally:
        os.dup2(scores, 1)
        os.close(scores)
