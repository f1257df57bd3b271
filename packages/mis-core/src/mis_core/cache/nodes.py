"""What the prefix cache is made of: nodes, what a request locks of them, and what it counts."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Int32

from mis_core.cache.states import State

_MOST_STATES = 3
"""States that a query reads and writes at once: where its chunk begins and ends, and before its last page."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counts since the cache was made, and its state now.

    Attributes:
        cache_hit_tokens: Query tokens found in the cache.
        cache_missed_tokens: Query tokens that had to be computed.
        evicted_pages: Pages whose prefix was forgotten because another needed room.
        free_pages: Pages that hold nothing.
        cached_pages: Pages in the tree, locked or not.
        held_pages: Pages in the tree that requests lock.
        pages: All pages.
        evicted_states: States that were forgotten because another needed the slot.
        free_states: Slots for states that hold nothing.
        states: All slots for states; 0: no layer is recurrent.
    """

    cache_hit_tokens: int
    cache_missed_tokens: int
    evicted_pages: int
    free_pages: int
    cached_pages: int
    held_pages: int
    pages: int
    evicted_states: int
    free_states: int
    states: int

    @classmethod
    def total(cls, caches: Iterable[Self]) -> Self:
        """Return the sums of several caches."""
        fields: Iterable[tuple[int, ...]] = zip(*map(astuple, caches), strict=True)
        return cls(*(sum(field) for field in fields))


@dataclass(slots=True, eq=False)
class Node:
    """One page of the tree; `locks` counts those that keep it there."""

    digest: bytes
    parent: "Node | None"
    tokens: bytes
    page: int
    locks: int
    state: State = field(default_factory=State)


class Inserted(NamedTuple):
    """What became of a chunk's pages and states.

    Attributes:
        known_pages: How many of its first pages were there already, and are not written again.
        reads: Slot of the state that it starts from; None: it starts from nothing.
        writes: Slots of states that it leaves: tokens of the chunk before each, and the slot.
    """

    known_pages: int = 0
    reads: int | None = None
    writes: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class PrefixLock:
    """One request's lock on the pages of its query, from the first page to as far as it is computed.

    `PrefixCache` makes and changes it.

    Attributes:
        tokens: The whole query, `[tokens]`.
        root: Where its path begins in the tree.
        num_pages: Pages of the whole query.
        done: Tokens whose pages are computed or planned.
        cached: Those of them that were found instead of computed.
        is_kept: Whether others find its pages, also when it is released; otherwise they are free then.
        path: Their nodes.
        states: The states that its request reads, by the number of tokens before them.
    """

    tokens: Int32[np.ndarray, " tokens"]
    root: bytes
    num_pages: int
    is_kept: bool
    done: int = 0
    cached: int = 0
    path: list[Node] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)

    @property
    def missing_states(self) -> int:
        """Slots that computing the rest will take at most. A state that others read, too, gives none back."""
        if self.done == len(self.tokens):
            return 0
        return _MOST_STATES - sum(state.readers == 1 for state in self.states.values())

    @property
    def pages(self) -> Int32[np.ndarray, " pages"]:
        """Pages of the first `done` tokens, in order."""
        return np.array([node.page for node in self.path], np.int32)

    @property
    def missing_pages(self) -> int:
        """Pages that computing the rest will take, if nobody else computes any of it."""
        return self.num_pages - len(self.path)

    def append(self, node: Node) -> int:
        """Go one page on; return its tokens."""
        self.path.append(node)
        tokens = len(node.tokens) // self.tokens.itemsize
        self.done += tokens
        return tokens
