"""Where a request has its pages: on one shard or, if it is spread, on all of them.

Every device along the mesh axis `data` has pages of its own, numbered from 0, and a prefix cache that says what is in
them. A spread request computes a chunk of its query on any shard and writes it on every one, so that the next chunk and
every item find all tokens before them wherever they are computed. Where layers are recurrent the first shard computes
the whole query, since each chunk goes on from a state; the others get the states that items start from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from mis_core.cache import Inserted, PrefixCache
from mis_core.requests import Layout
from mis_core.scheduler.plan import KEPT, PAGE_SIZE, SLOTS, StepShape, Writes
from mis_core.scheduler.reading import Owner
from mis_core.scheduler.recurrence import EMPTY, StateCopy, StateUse
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


class QueryLock:
    """One request's lock on the pages of its query, on each of its shards.

    Attributes:
        tokens: The whole query, `[tokens]`.
        homes: Its shards.
        cached: Tokens that were found on every shard instead of computed.
    """

    def __init__(
        self,
        homes: Sequence[Home],
        tokens: Int32[np.ndarray, " tokens"],
        salt: str | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Begin to lock; nothing is found or allocated yet. For the arguments see `PrefixCache.lock`."""
        self.tokens = tokens
        self.homes = tuple(homes)
        self.cached = 0
        self._locks = {home.shard: home.cache.lock(tokens, salt, anew=anew) for home in homes}
        self._is_recurrent = homes[0].cache.states is not None
        # Slots that states come to at the end of the step being planned: by tokens before the state, by shard.
        self._expected: dict[int, dict[int, int]] = {}

    @property
    def done(self) -> int:
        """Tokens whose pages are computed or planned on every shard."""
        return min(lock.done for lock in self._locks.values())

    @property
    def computing(self) -> tuple[int, ...]:
        """Shards that compute what is not cached: all in turn, or the one that has the states to go on from."""
        return tuple(home.shard for home in self.homes)[: 1 if self._is_recurrent else None]

    @property
    def expects_states(self) -> bool:
        """Whether some shards get states at the end of the step being planned."""
        return bool(self._expected)

    def pages(self, shard: int) -> Int32[np.ndarray, " pages"]:
        """Return a shard's pages of the first tokens, `done` or more, in order."""
        return self._locks[shard].pages

    def missing_pages(self, shard: int) -> int:
        """Return the pages that computing the rest will take on a shard, if nobody else computes any of it."""
        return self._locks[shard].missing_pages if shard in self._locks else 0

    def missing_states(self, shard: int) -> int:
        """Return the slots for states that computing the rest will take on a shard at most."""
        lock = self._locks.get(shard)
        return 0 if lock is None or not self._is_recurrent else lock.missing_states

    def states_after(self, tokens: Int32[np.ndarray, " segments"], shard: int) -> StateUse | None:
        """Return the reading of a shard's states after so many tokens, each 0 or one after which it has a state."""
        if not self._is_recurrent:
            return None
        states = self._locks[shard].states
        slots = np.full(len(tokens), EMPTY, np.int32)
        for length in np.unique(tokens[tokens > 0]).tolist():
            slot = states[length].slot
            assert slot is not None, "a state that is read was evicted"
            slots[tokens == length] = slot
        return StateUse(slots)

    def match(self) -> bool:
        """Lock what others have computed; return whether nothing is left to compute."""
        before = self.done
        if before < len(self.tokens) and self._may_match:
            for home in self.homes:
                home.cache.match(self._locks[home.shard])
            self.cached += self.done - before
        return self.done == len(self.tokens)

    def insert(self, count: int) -> tuple[Writes, StateUse | None]:
        """Allocate pages for the next tokens, which the step being planned computes.

        Args:
            count: Tokens; whole pages, or all that is left. Nothing more matches, and as many pages can be had.

        Returns:
            Where they go; and the states that they read and write, if any do.
        """
        begin, end = self.done, self.done + count
        writes: Writes = {}
        use = None
        for home in self.homes:
            lock = self._locks[home.shard]
            done, computes = lock.done, home.shard in self.computing
            inserted = home.cache.insert(lock, end - done, computes=computes) if done < end else Inserted()
            pages = lock.pages[begin // PAGE_SIZE : -(-end // PAGE_SIZE)]
            pages[: -(-(done - begin) // PAGE_SIZE) + inserted.known_pages] = KEPT
            writes[home.shard] = pages
            if self._is_recurrent and computes:
                read = EMPTY if inserted.reads is None else inserted.reads
                use = StateUse(np.array([read], np.int32), inserted.writes)
            elif self._is_recurrent:
                for tokens, slot in inserted.writes:
                    self._expected.setdefault(begin + tokens, {})[home.shard] = slot
        return writes, None if use is None else use._replace(copies=self._copies(begin))

    def receive(self) -> None:
        """Have the states that the step just planned copies to shards; nothing reads them before the next."""
        for tokens, slots in self._expected.items():
            for home in self.homes:
                if home.shard in slots:
                    home.cache.receive(self._locks[home.shard], tokens, slots[home.shard])
        self._expected = {}

    def let_go_of_states(self) -> None:
        """Read no states any more; the pages stay locked."""
        for home in self.homes:
            home.cache.let_go_of_states(self._locks[home.shard])

    def release(self, *, count: bool = True) -> None:
        """Lock nothing any more. Releasing twice is fine.

        Args:
            count: Whether what was found and computed enters the statistics, once for all shards.
        """
        least = min(self._locks.values(), key=lambda lock: lock.cached)
        for home in self.homes:
            lock = self._locks[home.shard]
            home.cache.release(lock, count=count and lock is least)

    @property
    def _may_match(self) -> bool:
        """Whether what is cached can be used: recurrent layers go on where all shards can, or nowhere."""
        if not self._is_recurrent or len(self.homes) == 1:
            return True
        found = {home.cache.count_cached(self._locks[home.shard]) for home in self.homes}
        return len(found) == 1 and not self._expected

    def _copies(self, begin: int) -> tuple[StateCopy, ...]:
        """Return which states after more than `begin` tokens go from the shard that computes them to others."""
        (shard,) = self.computing
        slots = {tokens: self._locks[shard].states[tokens].slot for tokens in self._expected if tokens > begin}
        return tuple(
            StateCopy(shard, slot, self._expected[tokens]) for tokens, slot in slots.items() if slot is not None
        )


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
