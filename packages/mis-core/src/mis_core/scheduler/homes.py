"""Where a request has its pages: on one shard or, if it is spread, on all of them.

Every device along the mesh axis `data` has pages of its own, numbered from 0, and a prefix cache that says what is in
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from mis_core.cache import PrefixCache
from mis_core.requests import Layout
from mis_core.scheduler.plan import SLOTS, StepShape
from mis_core.scheduler.reading import Owner
from mis_core.scheduler.spreading import ShardState, rank_homes


@runtime_checkable
class NeedsPages(Protocol):
    """A request whose segments are being planned."""

    def missing_pages(self, shard: int) -> int:
        """Return the most pages of a shard that it will still allocate."""

    def missing_states(self, shard: int) -> int:
        """Return the most slots for states of a shard that it will still allocate; 0 where no layer is recurrent."""


@runtime_checkable
class Decodes(Owner, Protocol):
    """A sequence with a row in decode steps.

    Attributes:
        slot: Its row.
        age: Rises from one run to the next.
        state: Slot of its recurrent state; None where no layer is recurrent.
    """

    slot: int
    age: int
    state: int | None

    @property
    def wants_token(self) -> bool:
        """Whether it has a row in the next decode step."""

    @property
    def needs_page(self) -> bool:
        """Whether its next token begins a page that it does not have yet."""

    @property
    def pages(self) -> Int32[np.ndarray, " pages"]:
        """Its pages, in order."""

    def add_page(self) -> None:
        """Allocate the page that it needs; there is one."""

    def decode(self) -> int:
        """Plan its next row, for which it has a page; return the row's position."""


class Vacancy(NamedTuple):
    """What a shard has left. A request that finds too little finds too little until one of these changes.

    Attributes:
        headroom: Pages that nobody will need.
        cached_pages: Pages of its prefix cache.
        evicted_pages: Pages that were evicted so far: as many may be cached as before, and others.
        free_slots: Slots that no sequence has.
        state_headroom: Slots for states that nobody will need.
    """

    headroom: int
    cached_pages: int
    evicted_pages: int
    free_slots: int
    state_headroom: int


class Home:
    """The pages and slots of one shard, and who has begun there.

    Attributes:
        shard: Its number.
        cache: Who has which of its pages.
        planning: Requests here whose segments are not all planned.
        slots: Sequences that have begun here, by their row in decode steps.
    """

    def __init__(self, shard: int, cache: PrefixCache) -> None:
        self.shard = shard
        self.cache = cache
        self.planning: set[NeedsPages] = set()
        self.slots: dict[int, Decodes] = {}
        self._free_slots = list(range(SLOTS))[::-1]

    @property
    def headroom(self) -> int:
        """Pages beyond what all requests here may still need: why none of them ever waits for a page.

        Negative while pages wait for the end of a step to be free again.
        """
        return self.cache.available - sum(each.missing_pages(self.shard) for each in self.planning)

    @property
    def vacancy(self) -> Vacancy:
        """What is left."""
        cache = self.cache.statistics
        return Vacancy(
            self.headroom, cache.cached_pages, cache.evicted_pages, len(self._free_slots), self.state_headroom
        )

    @property
    def state_headroom(self) -> int:
        """Slots for states beyond what all requests here may still need; 0 where no layer is recurrent."""
        if self.cache.states is None:
            return 0
        return self.cache.states.available - sum(each.missing_states(self.shard) for each in self.planning)

    def has_room(self, each: NeedsPages) -> bool:
        """Return whether a request that is not planned yet can begin."""
        missing = each.missing_pages(self.shard), each.missing_states(self.shard)
        return missing[0] <= self.headroom and missing[1] <= self.state_headroom

    @property
    def has_slot(self) -> bool:
        """Whether a sequence can begin."""
        return bool(self._free_slots)

    def reserve_slot(self) -> int:
        """Return a slot for a sequence; there is one."""
        return self._free_slots.pop()

    def free_slot(self, slot: int) -> None:
        """Take a slot back."""
        self.slots.pop(slot, None)
        self._free_slots.append(slot)


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What a request may begin on.

    Attributes:
        homes: All shards.
        shape: What a step has room for.
        layout: How requests are laid out unless they say otherwise.
        waiting_tokens: By shard, the tokens that requests still have to compute there.
        is_alone: Whether no other request runs or waits.
    """

    homes: Sequence[Home]
    shape: StepShape
    layout: Layout
    waiting_tokens: list[float]
    is_alone: bool

    def rank(
        self,
        query: Int32[np.ndarray, " tokens"],
        more_tokens: int,
        salt: str | None,
        *,
        anew: bool = False,
        may_spread: bool = False,
    ) -> list[list[Home]]:
        """Return the sets of shards that a request may get, the cheapest first; see `rank_homes`.

        Args:
            query: Tokens that may be cached.
            more_tokens: How many more it computes.
            salt: Of its cache entries.
            anew: Whether its query is computed even where it is cached.
            may_spread: Whether it may get all shards, if it is alone.
        """
        if len(self.homes) == 1:
            return [[*self.homes]]
        states = []
        for home, tokens in zip(self.homes, self.waiting_tokens, strict=True):
            cached = home.cache.count_cached(home.cache.lock(query, salt, anew=anew))
            states.append(ShardState(tokens, cached, home.cache.statistics.free_pages))
        is_alone, divides_query = self.is_alone and may_spread, self.homes[0].cache.states is None
        ranked = rank_homes(len(query), more_tokens, states, is_alone=is_alone, divides_query=divides_query)
        return [[self.homes[shard] for shard in shards] for shards in ranked]
