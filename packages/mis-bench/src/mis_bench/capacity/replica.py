"""One simulated replica: the real prefix cache, and steps that requests share as the scheduler lets them.

A step takes a fixed time and a time for each of its rows, padding included, times a factor that may vary: where
machines are shared, steps of one size differ by much, and requests pile up at whoever is slow.

The rules are those of `mis_core.scheduler`, and a test holds the tokens that both find cached against each other. The
scheduler itself takes 9 ms a request of 500 items, seventy times as long as all of this: it lays out every item, and a
plan simulates 50,000 requests. The rules: requests wait in order until the pages that they may need can be had; those
that run take turns (`mis_core.scheduler.turns`), and the oldest gets the rest; a query is computed once, page by page,
also when requests of the same query run together. Items are short ones, which take no pages. Where rows lie is in
`rows`.
"""

import itertools
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import simpy

from mis_bench.capacity.rows import StepRoom, StepRows
from mis_core.cache import PrefixCache
from mis_core.scheduler.plan import PAGE_SIZE
from mis_core.scheduler.turns import is_small, oldest_first, share

MAX_RUNNING = 256
"""Most requests that share steps, as `--max-running-requests` has it unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShape:
    """What a replica has, and what it takes.

    Attributes:
        cache_tokens: Capacity of its KV cache; more than a query.
        room: Of a step.
        step_s: Seconds of a step, whatever is in it.
        row_s: Seconds of each of its rows, padding included.
        front_s: Seconds of the process that speaks HTTP, for each request, one after the other.
        step_factors: What the times of steps are multiplied by, with a mean of 1. Each replica takes one after the
            other from a drawn place on, so that slow times last as long as where these were measured.
        front_factors: Likewise for the front's time of a request; from the same part of them on.
    """

    cache_tokens: int
    room: StepRoom
    step_s: float
    row_s: float
    front_s: float = 0.0
    step_factors: tuple[float, ...] = (1.0,)
    front_factors: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """Tokens of every request.

    Attributes:
        query_tokens: Of its query.
        item_tokens: Of all its items together.
        item_length: Of one of them; only items longer than a step takes whole are cut at the end of a step.
    """

    query_tokens: int
    item_tokens: int
    item_length: int = 1

    @property
    def pages(self) -> int:
        """Pages of the query."""
        return -(-self.query_tokens // PAGE_SIZE)


class _Work:
    """A request on its way through steps. A page is one token here: the tree is the same, and less is hashed."""

    def __init__(self, number: int, query: int, shape: RequestShape, cache: PrefixCache, done: simpy.Event) -> None:
        self.number = number
        self.query = query
        self.done = done
        self.cached_tokens = 0
        self.lock = cache.lock(np.full(shape.pages, query, np.int32))
        self._shape = shape
        self._cache = cache
        self._items = shape.item_tokens

    @property
    def is_planned(self) -> bool:
        return not self._items and self.lock.missing_pages == 0

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned, if nobody else computes any."""
        return self._shape.query_tokens - self._done + self._items

    @property
    def _done(self) -> int:
        """Query tokens that are computed or planned; the last page may be a partial one."""
        return min(self.lock.done * PAGE_SIZE, self._shape.query_tokens)

    def match(self) -> int:
        """Take what others have computed; return how many pages are missing."""
        before = self._done
        self._cache.match(self.lock)
        self.cached_tokens += self._done - before
        return self.lock.missing_pages

    def drop(self) -> None:
        """Give back what was taken."""
        self._cache.release(self.lock, count=False)
        self.cached_tokens = 0

    def contribute_query(self, rows: StepRows, limit: int) -> int:
        """Add a part of the query to a step; return how many tokens, at most `limit`."""
        missing = self.match()
        left, limit = self._shape.query_tokens - self._done, min(limit, rows.left(self.query, paged=True))
        pages = missing if left <= limit else limit // PAGE_SIZE
        if not pages:
            return 0
        self._cache.insert(self.lock, pages)
        return rows.add(self.query, min(left, pages * PAGE_SIZE), paged=True)

    def contribute(self, rows: StepRows, limit: int) -> int:
        """Add to a step; return how many tokens, at most `limit`. What others computed is taken also with no room."""
        self.match()
        added = 0
        while added < limit and (more := self._add(rows, limit - added)):
            added += more
        return added

    def _add(self, rows: StepRows, limit: int) -> int:
        if self.lock.missing_pages and self.match():
            return self.contribute_query(rows, limit)
        if not self._items:
            return 0
        length = min(self._shape.item_length, self._items)  # of the last one, what is left
        if self._shape.item_length <= rows.room.longest_item:
            added = rows.add_items(self.query, min(self._items, limit) // length, length)
        elif added := min(self._items, limit, rows.left(self.query, paged=True)):
            rows.add(self.query, added, paged=True)
        self._items -= added
        return added


class SimulatedReplica:
    """A replica that serves from its making until it is killed.

    Attributes:
        is_up: Whether it was not killed.
        tokens: New tokens of its steps so far.
        rows: Rows of its steps so far, padding included.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        shape: ReplicaShape,
        request: RequestShape,
        rng: np.random.Generator | None = None,
    ) -> None:
        """Start with an empty cache.

        Args:
            environment: Whose time passes.
            shape: What it has and takes.
            request: Tokens of every request.
            rng: Draws where the factors of its times begin.

        Raises:
            ValueError: a query does not fit the cache.
        """
        pages = shape.cache_tokens // PAGE_SIZE
        if request.pages > pages:
            raise ValueError(f"A query of {request.query_tokens} tokens does not fit a cache of {shape.cache_tokens}.")
        self.is_up = True
        self.tokens = self.rows = 0
        self._environment = environment
        self._shape = shape
        self._request = request
        begin = 0.0 if rng is None else rng.random()
        self._step_factors, self._front_factors = (
            itertools.chain.from_iterable(
                itertools.repeat(each[int(begin * len(each)) :] + each[: int(begin * len(each))])
            )
            for each in (shape.step_factors, shape.front_factors)
        )
        self._cache = PrefixCache(pages, 1)
        self._front_is_free = 0.0
        self._numbers = itertools.count()
        self._arriving: set[simpy.Event] = set()
        self._waiting: deque[_Work] = deque()
        self._running: deque[_Work] = deque()
        self._ending: list[_Work] = []  # with the step under way
        self._wake = environment.event()
        environment.process(self._run())

    def keep(self, query: int) -> None:
        """Put a query into the cache as if it had just been served, if nothing else has to go for it."""
        lock = self._cache.lock(np.full(self._request.pages, query, np.int32))
        self._cache.match(lock)
        if lock.missing_pages <= self._cache.statistics.free_pages:
            self._cache.insert(lock, lock.missing_pages)
        self._cache.release(lock, count=False)

    def serve(self, query: int) -> simpy.Event:
        """Take a request; the event's value is how many tokens of its query were cached, None if the replica died."""
        done = self._environment.event()
        begins = max(self._environment.now, self._front_is_free)
        self._front_is_free = begins + self._shape.front_s * next(self._front_factors)
        self._arriving.add(done)
        arrival = self._environment.timeout(self._front_is_free - self._environment.now)
        assert arrival.callbacks is not None, "nothing has happened yet"
        arrival.callbacks.append(lambda _: self._arrive(query, done))
        return done

    def kill(self) -> None:
        """End at once; what it had is lost, and so are the requests that it held."""
        self.is_up = False
        for done in [*self._arriving, *(work.done for work in (*self._waiting, *self._running, *self._ending))]:
            if not done.triggered:
                done.succeed(None)
        self._waiting.clear()
        self._running.clear()
        self._arriving.clear()
        self._awake()

    def _arrive(self, query: int, done: simpy.Event) -> None:
        if self.is_up:
            self._arriving.remove(done)
            self._waiting.append(_Work(next(self._numbers), query, self._request, self._cache, done))
            self._awake()

    def _awake(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while self.is_up:
            self._admit()
            if not self._running:
                self._wake = self._environment.event()
                yield self._wake
                continue
            rows, self._ending = self._plan()
            step_s = self._shape.step_s + rows * self._shape.row_s
            yield self._environment.timeout(step_s * next(self._step_factors))
            for work in self._ending:
                if not work.done.triggered:
                    work.done.succeed(work.cached_tokens)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < MAX_RUNNING:
            work = self._waiting[0]
            missing = work.match()
            if missing > self._cache.available - sum(each.lock.missing_pages for each in self._running):
                work.drop()
                return
            self._running.append(self._waiting.popleft())

    def _plan(self) -> tuple[int, list[_Work]]:
        """Plan a step; return its rows, and the requests that end with it."""
        room, oldest = self._shape.room, min(self._running, key=lambda work: work.number)
        least = max(room.longest_item, room.alignment)
        works = oldest_first(self._running, oldest, tokens=room.tokens, least=least)
        part = partial(share, room.tokens, len(works), least=least, alignment=room.alignment)
        shares = [part(work.remaining_tokens, is_oldest=work is oldest) for work in works]
        rows, added = StepRows(room), dict.fromkeys(works, 0)
        if room.alignment == 1:
            for work, limit, dealt in zip(works, shares, itertools.accumulate(shares), strict=True):
                if dealt > room.tokens:
                    break
                added[work] = work.contribute_query(rows, limit)
        for work, limit in zip(works, shares, strict=True):
            added[work] += work.contribute(rows, limit - added[work])
        self.tokens += sum(added.values())
        served = [work for work, tokens in added.items() if tokens]
        for work in sorted(served, key=lambda work: work.number):
            self.tokens += work.contribute(rows, room.tokens)
        self.rows += rows.size
        ended = []
        for work in served:
            if work.is_planned:
                self._running.remove(work)
                self._cache.release(work.lock)
                ended.append(work)
            elif not is_small(room.tokens, work.remaining_tokens):
                self._running.remove(work)
                self._running.append(work)
        return rows.size, ended


def padding_when_full(room: StepRoom, request: RequestShape) -> float:
    """Return the part of rows that is padding while a replica has all it can do, and every query is new."""
    environment = simpy.Environment()
    tokens = request.query_tokens + request.item_tokens
    count = max(8, min(-(-8 * room.tokens // tokens), MAX_RUNNING))
    shape = ReplicaShape(cache_tokens=(count + 1) * request.pages * PAGE_SIZE, room=room, step_s=0.0, row_s=1.0)
    replica = SimulatedReplica(environment, shape, request)
    for query in range(count):
        replica.serve(query)
    environment.run()
    return 1 - replica.tokens / replica.rows
