"""The input of a job, as it can be read again and again: first to count it, then to score it."""

import contextlib
import importlib.util
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from mis_core.errors import ConfigError
from mis_server.offline.asked import OfflineTask
from mis_server.offline.places import is_kept, status_of
from mis_server.offline.rows import InputRow
from mis_server.offline.text import Lines

STANDARD_INPUT = "-"
_ITS_NAMES = (STANDARD_INPUT, "/dev/stdin")
_PARQUET = b"PAR1"  # how its files begin
_CHUNK_BYTES = 1024 * 1024
_LEFT_BYTES = 1024**3  # of the disk, for others; of a small one, a twentieth of it


@dataclass(frozen=True, slots=True)
class Survey:
    """What an input holds.

    Attributes:
        rows: How many.
        digest: Of all of it.
    """

    rows: int
    digest: str


class Input(Protocol):
    """Rows that are read twice. Made by `opened`."""

    def survey(self) -> Survey:
        """Read all of it."""
        ...

    def rows(self, expected: Survey, skip: int = 0) -> Iterator[InputRow]:
        """Yield the rows but the first, and check at the end that they are those of the survey."""
        ...


class LinesInput:
    """An input of lines."""

    def __init__(self, name: str, file: BinaryIO, option: str, asked: OfflineTask) -> None:
        """Take its name for messages, the file, the option that it was given by, and what is asked of rows."""
        self._name = name
        self._file = file
        self._option = option
        self._asked = asked

    def survey(self) -> Survey:
        """Read all of it.

        Raises:
            ConfigError: it cannot be read.
        """
        lines = self._lines()
        for _ in lines:
            pass
        return Survey(lines.count, lines.digest())

    def rows(self, expected: Survey, skip: int = 0) -> Iterator[InputRow]:
        """Yield the rows, and check at the end that they are those of the survey.

        Args:
            expected: What the survey found.
            skip: So many rows are read, but not yielded.

        Raises:
            ConfigError: it cannot be read, or is not what it was.
        """
        lines = self._lines()
        for line in lines:
            if lines.count > expected.rows:
                break
            if lines.count > skip:
                yield self._asked.read_line(line)
        check_unchanged(self._name, Survey(lines.count, lines.digest()), expected, self._option)

    def _lines(self) -> Lines:
        self._file.seek(0)
        return Lines(self._file, self._name, self._option)


def check_unchanged(name: str, found: object, expected: object, option: str) -> None:
    """Refuse an input that is another than it was found to be before.

    Raises:
        ConfigError: it is.
    """
    if found != expected:
        message = f"{name} changed while it was scored; score it again with another --output, or --overwrite."
        raise ConfigError(message, option)


def is_read_once(name: str) -> bool:
    """Return whether an input is standard input, a pipe or a device: it cannot be counted first and then scored."""
    return name in _ITS_NAMES or not is_kept(Path(name))


@contextlib.contextmanager
def opened(name: str, option: str, asked: OfflineTask) -> Iterator[Input]:
    """Open an input; one that can be read once is copied to a temporary file, which has no name and ends with us.

    Args:
        name: A path, or `-` for standard input.
        option: That it was given by, for errors.
        asked: What is asked of its rows.

    Raises:
        ConfigError: it cannot be read, or copied.
    """
    shown = "standard input" if name in _ITS_NAMES else name
    status = status_of(Path(name))
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{name} is a folder; give a file, or many with --ray --input.", option)
    if name in _ITS_NAMES and sys.stdin is None:
        raise ConfigError("standard input is closed; name a file.", option)
    with contextlib.ExitStack() as files:
        try:
            if not is_read_once(name):
                file: BinaryIO = files.enter_context(Path(name).open("rb"))
            else:
                standard = cast(io.BufferedReader, sys.stdin.buffer)
                once = standard if name in _ITS_NAMES else files.enter_context(Path(name).open("rb"))
                file = files.enter_context(tempfile.TemporaryFile())
                _copy(once, file, shown, option)
        except OSError as error:
            raise ConfigError(f"{shown} cannot be read: {error.strerror}.", option) from None
        yield _input(shown, file, option, asked)


def _input(name: str, file: BinaryIO, option: str, asked: OfflineTask) -> Input:
    file.seek(0)
    magic = file.read(len(_PARQUET))
    if magic != _PARQUET and not name.endswith(".parquet"):
        return LinesInput(name, file, option, asked)
    check_parquet(option)
    from mis_server.offline.parquet import ParquetInput

    return ParquetInput(name, file, option, asked)


def check_parquet(option: str) -> None:
    """Refuse an option that means Parquet where pyarrow is not installed.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("Parquet needs pyarrow: pip install 'mis-server[parquet]'.", option)


def _copy(source: io.BufferedReader, copy: BinaryIO, name: str, option: str) -> None:
    """Copy until the source ends, or the disk would soon be full."""
    while chunk := source.read1(_CHUNK_BYTES):  # `read` would ignore Ctrl-C until the chunk is full
        disk = shutil.disk_usage(copy.fileno())
        if disk.free - len(chunk) < min(_LEFT_BYTES, disk.total // 20):
            raise _no_room(name, "has too little free space for it", option)
        try:
            copy.write(chunk)
            copy.flush()
        except OSError as error:
            raise _no_room(name, f"cannot hold it: {os.strerror(error.errno or 0)}", option) from None


def _no_room(name: str, reason: str, option: str) -> ConfigError:
    message = (
        f"{name} is copied to {tempfile.gettempdir()}, which {reason}; name another folder with TMPDIR, or give a file."
    )
    return ConfigError(message, option)
