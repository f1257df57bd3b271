"""Precompiled character maps of SentencePiece. `tokenizers` follows them wherever they lead; out of the map, it panics.

A map is base64 of the size of a table, the table, and texts that end with a zero byte. The table is a double-array trie
of 32-bit units (https://github.com/s-yata/darts-clone): a character's bytes lead from unit to unit to its text's place.
"""

import base64
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from mis_core.checkpoints.components import components
from mis_core.errors import ModelError

_TYPE, _MAP = "Precompiled", "precompiled_charsmap"
_MAX_BYTES = 1 << 22  # those of SentencePiece itself have some hundred thousand
_BYTES = np.arange(1, 256)
_MAX_LEVELS = 1 << 10  # bytes of the longest text that is mapped; those of SentencePiece have some ten
_AT_ONCE = 1 << 12  # units whose successors are looked at together


def check_charsmaps(path: Path, normalizer: object) -> None:
    """Refuse a normalizer of `tokenizer.json` that holds a broken map.

    Args:
        path: The file.
        normalizer: What the file says of its normalizer.

    Raises:
        ModelError: a map is broken, or far larger than published ones.
    """
    left = _MAX_BYTES
    parts = (part for part in components(normalizer) if part.get("type") == _TYPE or _MAP in part)
    for text in (part.get(_MAP) for part in parts):
        content = content_of(text)
        left -= len(content)
        if left < 0:
            many = _MAX_BYTES - left
            raise ModelError(f"{path}: precompiled_charsmap has {many:,} bytes; at most {_MAX_BYTES:,} are allowed.")
        size = int.from_bytes(content[:4], "little")
        table, texts = content[4 : 4 + size], content[4 + size :]
        if len(table) < max(size, 4) or size % 4 or not _is_text(texts) or not _stays_inside(table, texts):
            raise ModelError(f"{path}: precompiled_charsmap is broken.")


def content_of(charsmap: object) -> bytes:
    """Return what a map holds: the size of a table, the table, and texts. Nothing if it is broken."""
    try:
        return base64.b64decode(charsmap, validate=True) if isinstance(charsmap, str) else b""
    except ValueError:  # not ASCII, or no base64
        return b""


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _stays_inside(table: bytes, texts: bytes) -> bool:
    """Whether no text leads out of the table, and no unit out of the texts."""
    units = np.frombuffer(table, "<u4").astype(np.int64)
    starts = np.append((np.frombuffer(texts, np.uint8) & 0xC0) != 0x80, True)  # of characters, and the end
    seen = np.zeros(len(units), np.bool_)
    bases, levels = _offset(units[:1]), 0
    while len(bases):
        levels += 1
        if levels > _MAX_LEVELS or (bases | 255 >= len(units)).any():
            return False
        bases = np.unique(bases[~seen[bases]])
        seen[bases] = True
        parts = (bases[begin : begin + _AT_ONCE] for begin in range(0, len(bases), _AT_ONCE))
        found = np.concatenate([_successors(units, part) for part in parts] or [bases])
        bases = found ^ _offset(units[found])
        if (bases >= len(units)).any():
            return False
        values = units[bases[units[found] >> 8 & 1 == 1]] & 0x7FFFFFFF
        if (values >= len(starts)).any() or not starts[values].all():
            return False
    return True


def _offset(units: Int64[np.ndarray, " units"]) -> Int64[np.ndarray, " units"]:
    return units >> 10 << ((units & 1 << 9) >> 6)


def _successors(
    units: Int64[np.ndarray, " units"], bases: Int64[np.ndarray, " bases"]
) -> Int64[np.ndarray, " successors"]:
    """Return the places of the units that some byte leads to from some base."""
    found = bases[:, None] ^ _BYTES
    return found[units[found] & 0x800000FF == _BYTES]
