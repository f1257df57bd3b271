"""Lines of text: what a line is, and how files hold them. `mis-server score` reads them here and on a cluster alike.

- A byte order mark is no part of a line, wherever one stands (files that were joined have several).
- Blank lines at the end are none. One between others is a row, and an error, so that lines keep their numbers.
- What a file holds is told by its first bytes, which no line of JSON begins with, and not by its name.
"""

import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from mis_core.errors import ConfigError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line, expanded, is an error of its row: the server's default limit of a body."""

HEAD_BYTES = 8
"""Of a file, as many as say what it holds."""
SPACE = b" \t\r\n"
"""White space, as JSON has it."""

_SKIPPED_BYTES = 1024 * 1024  # of a line that is too long, read at once
_GZIP, _ZSTD = "gzip", "zstd"
_STARTS = {b"\x1f\x8b": _GZIP, b"\x28\xb5\x2f\xfd": _ZSTD}
_STARTS |= {bytes([first, 0x2A, 0x4D, 0x18]): _ZSTD for first in range(0x50, 0x60)}  # a frame to skip comes first
_REFUSED = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x5d\x00\x00": "LZMA",
    b"\x04\x22\x4d\x18": "LZ4",
    b"\x1f\x9d": "compress",
    b"PK\x03\x04": "ZIP",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x00\x00\xfe\xff": "UTF-32",
}
_DAMAGED = (OSError, EOFError, zlib.error, zstd.ZstdError)


def is_compressed(head: bytes) -> bool:
    """Return whether a file that begins with these 8 bytes or more is gzip or zstd."""
    return _encoding(head) is not None


def check_encoding(head: bytes, name: str, option: str) -> None:
    """Refuse a file that begins with these 8 bytes or more, if it is neither UTF-8 nor gzip nor zstd.

    Raises:
        ConfigError: what it is instead, and what to do.
    """
    for start, encoding in _REFUSED.items():
        if head.startswith(start):
            message = f"{name} is {encoding}, which is not read; make it UTF-8, plain or compressed by gzip or zstd."
            raise ConfigError(message, option)


def without_mark(text: bytes) -> bytes:
    """Return a line without a byte order mark in front."""
    return text.removeprefix(BYTE_ORDER_MARK)


def is_blank(line: bytes) -> bool:
    """Return whether a line has nothing but white space."""
    return not line.strip(SPACE) or not without_mark(line).strip(SPACE)


def is_too_long(line: bytes) -> bool:
    """Return whether a line is longer than `MAX_LINE_BYTES`; its end may be missing."""
    return len(line) - line.endswith(b"\n") > MAX_LINE_BYTES


class Lines:
    """The lines of a file, to go through once.

    A line that is too long comes without its end. Memory is bounded by the longest line that is not.

    Attributes:
        count: Lines so far.
    """

    def __init__(self, file: BinaryIO, name: str, option: str) -> None:
        """Take a file that can seek, and stands at its beginning.

        Args:
            file: Is left open.
            name: For messages.
            option: That it was given by, for errors.

        Raises:
            ConfigError: the file is neither UTF-8 nor gzip nor zstd.
        """
        self.count = 0
        self._name = name
        self._option = option
        self._digest = hashlib.blake2b(digest_size=16)
        head = file.read(HEAD_BYTES)
        file.seek(0)
        check_encoding(head, name, option)
        self._encoding = _encoding(head)
        self._file = _expanded(file, self._encoding)

    def digest(self) -> str:
        """Return a hash of all that was read, as it is expanded; at the end, of the whole file."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines.

        Raises:
            ConfigError: the file cannot be read, or is damaged.
        """
        blank = 0
        try:
            while line := self._next():
                if is_blank(line) and not is_too_long(line):
                    blank += 1
                    continue
                for each in (b"\n" for _ in range(blank)):
                    self.count += 1
                    yield each
                blank = 0
                self.count += 1
                yield line
        except _DAMAGED as error:
            reason = getattr(error, "strerror", None) or (str(error) if self._encoding else type(error).__name__)
            kind = f" as {self._encoding}" if self._encoding else ""
            raise ConfigError(f"{self._name} cannot be read{kind}: {reason.rstrip('.')}.", self._option) from None

    def _next(self) -> bytes:
        line = self._file.readline(MAX_LINE_BYTES + 1)
        self._digest.update(line)
        rest = line if is_too_long(line) else b"\n"
        while rest and not rest.endswith(b"\n"):
            rest = self._file.readline(_SKIPPED_BYTES)
            self._digest.update(rest)
        return line


def _encoding(head: bytes) -> str | None:
    return next((encoding for start, encoding in _STARTS.items() if head.startswith(start)), None)


def _expanded(file: BinaryIO, encoding: str | None) -> Any:
    if encoding == _GZIP:
        return gzip.GzipFile(fileobj=file)
    return io.BufferedReader(zstd.ZstdFile(file)) if encoding == _ZSTD else file
