"""Kinds of workloads: how a name and its sizes become a query and items."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from mis_bench.workloads.seeded import integers, tokens, words

LABEL_TOKEN_IDS = (9454, 2753)
"""The labels scored, unless a name asks for more."""

Ids = Int32[np.ndarray, " tokens"]
IdInputs = tuple[Ids, tuple[Ids, ...]]
TextInputs = tuple[str, tuple[str, ...]]


class Sizes(NamedTuple):
    """Sizes of a workload.

    Attributes:
        query: Tokens of the query; words in a `text`.
        items: Number of items.
        item: Tokens of an item, their mean where lengths differ; words in a `text`.
    """

    query: int
    items: int
    item: int

    @property
    def total(self) -> int:
        """Tokens or words altogether."""
        return self.query + self.items * self.item


def uniform(name: str, sizes: Sizes) -> IdInputs:
    """Return items of equal length, all different."""
    ids = tokens(name, sizes.total)
    return ids[: sizes.query], tuple(ids[sizes.query :].reshape(sizes.items, sizes.item))


def ragged(name: str, sizes: Sizes) -> IdInputs:
    """Return items of 1 to `2 * sizes.item - 1` tokens with a mean of exactly `sizes.item`.

    Half of the lengths are drawn, the other half mirror them about the mean.
    """
    drawn = 1 + integers(f"lengths of {name}", sizes.items // 2).astype(np.int64) % (2 * sizes.item - 1)
    lengths = np.concatenate([drawn, [sizes.item] * (sizes.items % 2), 2 * sizes.item - drawn]).astype(np.int64)
    ids = tokens(name, sizes.total)
    return ids[: sizes.query], tuple(np.split(ids[sizes.query :], np.cumsum(lengths)[:-1]))


def duplicates(name: str, sizes: Sizes) -> IdInputs:
    """Return items that take turns among a tenth as many, rounded up."""
    distinct = -(-sizes.items // 10)
    query, items = uniform(name, sizes._replace(items=distinct))
    return query, tuple(items[number % distinct] for number in range(sizes.items))


def text(name: str, sizes: Sizes) -> TextInputs:
    """Return a query and items of words; items begin with a space, so that they can follow the query."""
    drawn = iter(words(name, sizes.total))
    query = " ".join(next(drawn) for _ in range(sizes.query))
    return query, tuple("".join(f" {next(drawn)}" for _ in range(sizes.item)) for _ in range(sizes.items))


KINDS: dict[str, Callable[[str, Sizes], IdInputs | TextInputs]] = {
    "ragged": ragged, "duplicates": duplicates, "text": text,
}  # fmt: skip
"""First words of names that mean more than other tokens; any other word is `uniform`."""

PRODUCTION = {
    "track_low": Sizes(183, 16, 26),
    "track_mean": Sizes(420, 96, 55),
    "track_high": Sizes(483, 128, 63),
    "home_low": Sizes(155, 8, 30),
    "home_mean": Sizes(275, 34, 50),
    "home_high": Sizes(2375, 256, 70),
}
"""Sizes of requests met in production: recommendations of tracks and of a home page, by load."""


def labels(count: int) -> Int32[np.ndarray, " labels"]:
    """Return different label ids; more labels begin with the fewer."""
    drawn = dict.fromkeys([*LABEL_TOKEN_IDS, *tokens("labels", 2 * count).tolist()])
    return np.array(list(drawn)[:count], np.int32)
