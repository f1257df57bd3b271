"""Checksums that tell parts of a model apart."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

_END = 1 << 20


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
    """Return a checksum of settings, and of name, size and both ends of every file of weights.

    Reads a few megabytes, not all: it tells checkpoints apart, it does not vouch for every bit.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_END))
            file.seek(max(0, size - _END))
            digest.update(file.read())
    return digest.hexdigest()


def files_sha256(paths: Iterable[Path]) -> str:
    """Return a checksum of files, each byte of them.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
