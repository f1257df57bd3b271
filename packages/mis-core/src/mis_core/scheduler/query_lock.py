"""A request's lock on its query: the pages, and the recurrent states, that it has on each of its shards.

A spread request computes a chunk of its query on any shard and writes it on every one, so that the next chunk and
every item find all tokens before them wherever they are computed. Where layers are recurrent the first shard computes
the whole query, since each chunk goes on from a state; the others get the states that items start from.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from mis_core.cache import Inserted
from mis_core.scheduler.homes import Home
from mis_core.scheduler.plan import KEPT, PAGE_SIZE, Writes
from mis_core.scheduler.recurrence import EMPTY, StateCopy, StateUse


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
