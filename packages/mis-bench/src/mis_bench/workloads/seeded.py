"""Numbers decided by a name: read off SHAKE-256, not drawn from a library's generator, whose stream may change."""

import hashlib

import numpy as np
from jaxtyping import Int32, UInt32

TOKEN_IDS = range(1000, 100_000)
"""Ids that occur: ordinary tokens, and no special ones, in the vocabularies of Qwen 2, Qwen 3 and Llama 3."""

_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]


def integers(name: str, count: int) -> UInt32[np.ndarray, " count"]:
    """Return integers below 2^32; a longer draw of the same name begins with the shorter one."""
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), "<u4")


def tokens(name: str, count: int) -> Int32[np.ndarray, " count"]:
    """Return token ids of `TOKEN_IDS`."""
    return (TOKEN_IDS.start + integers(name, count) % len(TOKEN_IDS)).astype(np.int32)


def words(name: str, count: int) -> list[str]:
    """Return words of two or three syllables, such as `lomi` or `sateru`."""
    drawn = integers(name, 4 * count).reshape(count, 4)
    return ["".join(_SYLLABLES[part % len(_SYLLABLES)] for part in row[: 2 + row[3] % 2]) for row in drawn.tolist()]


def fractions(name: str, count: int) -> list[float]:
    """Return numbers from 0 to below 1."""
    return (integers(name, count) / 2**32).tolist()
