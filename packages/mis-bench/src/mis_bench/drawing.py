"""Tokens and words of workloads, drawn from their names.

Numbers are read off SHAKE-256 of the name, not drawn from a library's generator, whose stream may change between
releases.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt32

from mis_bench import system_one

LABEL_TOKEN_IDS = (9454, 2753)
"""The labels scored, unless a name asks for more."""

TOKEN_IDS = range(1000, 100_000)
"""Ids that occur: ordinary tokens, and no special ones, in the vocabularies of Qwen 2, Qwen 3 and Llama 3."""

_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]

_WORDS = (
    "about after again always another area ask back best book business call case change city company country day "
    "different early end every example eye face fact family few find first friend give good government great group "
    "hand head help high home house idea important information issue job keep large last law level life line little"
)  # one token each in the vocabulary of Qwen's models, with and without a space before it

Tokens = Int32[np.ndarray, " tokens"] | str
"""Token ids, or a text."""

Inputs = tuple[Tokens, tuple[Tokens, ...]]
"""A query and items."""


class Sizes(NamedTuple):
    """Tokens of the query, number of items, tokens of an item on average; words in a `text`."""

    query: int
    items: int
    item: int

    @property
    def total(self) -> int:
        """Tokens or words altogether."""
        return self.query + self.items * self.item


def integers(name: str, count: int) -> UInt32[np.ndarray, " count"]:
    """Return integers below 2^32; a longer draw of the same name begins with the shorter one."""
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), "<u4")


def tokens(name: str, count: int) -> Int32[np.ndarray, " count"]:
    """Return token ids of `TOKEN_IDS`."""
    return (TOKEN_IDS.start + integers(name, count) % len(TOKEN_IDS)).astype(np.int32)


def labels(count: int) -> Int32[np.ndarray, " labels"]:
    """Return different label ids; more labels begin with the fewer."""
    drawn = dict.fromkeys([*LABEL_TOKEN_IDS, *tokens("labels", 2 * count).tolist()])
    return np.array(list(drawn)[:count], np.int32)


def uniform(name: str, sizes: Sizes) -> Inputs:
    """Return items of equal length, all different."""
    ids = tokens(name, sizes.total)
    return ids[: sizes.query], tuple(ids[sizes.query :].reshape(sizes.items, sizes.item))


def ragged(name: str, sizes: Sizes) -> Inputs:
    """Return items of 1 to `2 * sizes.item - 1` tokens with a mean of exactly `sizes.item`.

    Half of the lengths are drawn, the other half mirror them about the mean.
    """
    drawn = 1 + integers(f"lengths of {name}", sizes.items // 2).astype(np.int64) % (2 * sizes.item - 1)
    lengths = np.concatenate([drawn, [sizes.item] * (sizes.items % 2), 2 * sizes.item - drawn]).astype(np.int64)
    ids = tokens(name, sizes.total)
    return ids[: sizes.query], tuple(np.split(ids[sizes.query :], np.cumsum(lengths)[:-1]))


def text(name: str, sizes: Sizes) -> Inputs:
    """Return a query and items of words; items begin with a space, so that they can follow the query.

    Words have two or three syllables, such as `lomi` or `sateru`.
    """
    drawn = integers(name, 4 * sizes.total).reshape(-1, 4).tolist()
    words = ["".join(_SYLLABLES[part % len(_SYLLABLES)] for part in row[: 2 + row[3] % 2]) for row in drawn]
    rows = np.reshape(words[sizes.query :], (sizes.items, sizes.item))
    return " ".join(words[: sizes.query]), tuple(f" {' '.join(row)}" for row in rows)


def plain_text(name: str, sizes: Sizes) -> Inputs:
    """Return a query and items of common words, which are tokens of most vocabularies."""
    query, rows = _plain_words(name, sizes)
    return query, tuple(" ".join(row) for row in rows)


def state_and_questions(name: str, sizes: Sizes, options: int) -> Inputs:
    """Return a state of common words, and questions about it, of whose instructions `sizes.item` is the length."""
    query, rows = _plain_words(name, sizes._replace(item=system_one.words_of(sizes.item, options)))
    return query, system_one.questions(rows, sizes.item, options)


KINDS: dict[str, Callable[[str, Sizes], Inputs]] = {
    "ragged": ragged, "text": text, "rerank": plain_text, "decisions": plain_text,
}  # fmt: skip
"""First words of names whose tokens are of a kind of their own; any other word is `uniform`."""


def _plain_words(name: str, sizes: Sizes) -> tuple[str, list[list[str]]]:
    """Return a text of common words, and rows of them."""
    known = _WORDS.split()
    words = np.array(known)[integers(name, sizes.total) % len(known)]
    return " ".join(words[: sizes.query]), words[sizes.query :].reshape(sizes.items, sizes.item).tolist()
