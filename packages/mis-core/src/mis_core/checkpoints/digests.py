"""Checksums that tell parts of a model apart."""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from mis_core.errors import ModelError

_END = 1 << 20
_BLOCKS, _BLOCK = 256, 1 << 14


class ModelPart(msgspec.Struct, frozen=True):
    """A part of a served model.

    Attributes:
        kind: The language model, a trained decision head, or an adapter that is merged into its weights.
        name: Of its folder or file.
        sha256: Of a head or an adapter, of all bytes of its files; of a base what `weights_sha256` returns.
    """

    kind: Literal["base", "head", "adapter"]
    name: str
    sha256: str


def weights_sha256(settings: Any, paths: Iterable[Path]) -> str:
    """Return a checksum of settings, and of name, size, both ends and blocks in between of every file of weights.

    Reads a few megabytes, not all: it tells checkpoints apart, it does not vouch for every bit.

    Raises:
        ModelError: a file cannot be read.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in paths:
        with _reading(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.name} {size}".encode())
            digest.update(file.read(_END))
            for block in range(1, _BLOCKS):
                file.seek(size * block // _BLOCKS)
                digest.update(file.read(_BLOCK))
            file.seek(max(0, size - _END))
            digest.update(file.read())
    return digest.hexdigest()


def kept_sha256(path: Path, folder: Path) -> str:
    """Return a checksum of every byte of a file, read only if it is not the file that it was the last time.

    Args:
        path: The file.
        folder: Where checksums are kept, with what tells that the file is the same.

    Raises:
        ModelError: the file cannot be read.
    """
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32]
    kept = folder / f"{name}.json"
    with _reading(path) as file:
        found = os.fstat(file.fileno())
        same = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
        with contextlib.suppress(OSError, msgspec.DecodeError):
            entry = msgspec.json.decode(kept.read_bytes(), type=_Kept)
            if entry.same == same:
                return entry.sha256
        entry = _Kept(same, hashlib.file_digest(file, "sha256").hexdigest())
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_bytes(msgspec.json.encode(entry))
        written.replace(kept)
    return entry.sha256


class _Kept(msgspec.Struct, frozen=True):
    """A checksum, and of which file."""

    same: list[int]
    sha256: str


def files_sha256(paths: Iterable[Path]) -> str:
    """Return a checksum of files, each byte of them.

    Raises:
        ModelError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        with _reading(path) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[io.BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error}).") from None
