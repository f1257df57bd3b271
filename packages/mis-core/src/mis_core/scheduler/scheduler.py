"""The scheduler: requests in, steps out, values back in, answers out. Knows neither devices nor threads.

Requests wait in order of arrival until a shard has room for all they may need; so a request that runs
never waits for pages, and none can block another for ever. Then it stays on that shard; one that is alone
may get all of them. Those that run on a shard take turns: every step gives each the same share of its
tokens, then what is left to whoever wants more.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.cache import CacheStatistics, PrefixCache
from mis_core.scheduler.algorithm import RequestSize, choose
from mis_core.scheduler.answer import Answer
from mis_core.scheduler.duplicates import without_duplicates
from mis_core.scheduler.homes import Home, QueryLock
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, StepBuilder, StepPlan, StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.spreading import ShardState, rank_homes
from mis_core.scheduler.work import Work
from mis_core.scoring.request import EngineOutput, Layout, ScoreRequest, query_as_item

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Waiting:
    id: int
    request: ScoreRequest
    places: Int32[np.ndarray, " items"] | None
    arrived: float


class Scheduler:
    """Plans steps for any number of requests. Use it from one thread at a time."""

    def __init__(
        self, shape: StepShape, pages: int, layout: Layout, *, max_running: int = 256, prefix_cache: bool = True
    ) -> None:
        """Start idle.

        Args:
            shape: What a step has room for.
            pages: Pages of the KV cache on each shard, at least what the longest context and one page more need.
            layout: How requests are laid out unless they say otherwise.
            max_running: Most requests that take turns.
            prefix_cache: Whether queries are kept for later requests.
        """
        self._shape = shape
        self._layout = layout
        self._max_running = max_running
        self._pages = pages
        self._prefix_cache = prefix_cache
        self._waiting: deque[_Waiting] = deque()
        self._running: deque[Work] = deque()
        self._homes = self._empty_homes()
        self._unread: dict[int, Work] = {}
        self._blocked: tuple[_Waiting, list[tuple[int, int]]] | None = None

    @property
    def has_work(self) -> bool:
        """Whether a step can be planned."""
        return bool(self._waiting or self._running)

    @property
    def num_requests(self) -> int:
        """Requests that wait, run, or have values to come."""
        return len(self._waiting) + len(self._unread)

    @property
    def cache(self) -> CacheStatistics:
        """State of the prefix caches of all shards together."""
        return CacheStatistics.total(home.cache.statistics for home in self._homes)

    def submit(self, id: int, request: ScoreRequest) -> None:
        """Append a request. `id` must not be in use."""
        arrived = time.perf_counter()
        self._waiting.append(_Waiting(id, *without_duplicates(request), arrived))

    def cancel(self, id: int) -> bool:
        """Forget a request, wherever it is; return whether it was here. What runs on the device is ignored later."""
        for waiting in self._waiting:
            if waiting.id == id:
                self._waiting.remove(waiting)
                return True
        work = self._unread.pop(id, None)
        if work is None:
            return False
        work.answer.is_cancelled = True
        if work in self._running:
            self._running.remove(work)
        work.drop()
        return True

    def abort(self) -> list[int]:
        """Forget every request that has begun, and the whole cache: its memory is lost. Return their ids."""
        ids = list(self._unread)
        self._unread.clear()
        self._running.clear()
        self._homes = self._empty_homes()
        return ids

    def flush(self) -> int:
        """Forget every prefix that no request holds; return how many pages that freed."""
        return sum(home.cache.flush() for home in self._homes)

    def next_step(self) -> StepPlan | None:
        """Plan one step, or None if nothing waits."""
        self._admit()
        if not self._running:
            return None
        if self._running[0].choice.dense_mask:
            return self._plan([self._running[0]], dense_mask=True)
        return self._plan([work for work in self._running if not work.choice.dense_mask])

    def complete(self, plan: StepPlan, values: list[Values]) -> list[tuple[int, EngineOutput]]:
        """Take the values of a step's readings; return the requests that are now answered."""
        answered = []
        for reading, read in zip(plan.readings, values, strict=True):
            answer: Answer = reading.owner
            if answer.is_cancelled:
                continue
            answer.store(reading, read)
            if answer.is_complete:
                answered.append((answer.id, self._unread.pop(answer.id).result()))
        return answered

    def check(self) -> None:
        """Assert that no page is lost."""
        for home in self._homes:
            home.cache.check(private=sum(work.own_pages(home.shard) for work in self._running))

    def _empty_homes(self) -> list[Home]:
        caches = (PrefixCache(self._pages, PAGE_SIZE, enabled=self._prefix_cache) for _ in range(self._shape.shards))
        return [Home(shard, cache, self._running) for shard, cache in enumerate(caches)]

    def _plan(self, works: list[Work], dense_mask: bool = False) -> StepPlan | None:
        shape = self._shape
        most = None
        if any(len(work.shards) > 1 for work in works):  # shards are padded to the fullest, so none takes more of it
            most = math.ceil(max(self._waiting_tokens(works)) / LONG_ITEM) * LONG_ITEM
        builder = StepBuilder(shape, most)
        # Less than a run of rows with one context would be padded up to it.
        least = max(LONG_ITEM, shape.alignment)
        sharing = [sum(shard in work.shards for work in works) for shard in range(shape.shards)]
        served = []
        for work in works:
            share = sum(shape.tokens // sharing[shard] for shard in work.shards) // PAGE_SIZE * PAGE_SIZE
            if work.contribute(builder, max(share, least)):
                served.append(work)
        for work in served:
            work.contribute(builder, shape.tokens * shape.shards)
        for work in served:
            self._running.remove(work)
            work.end_step()
            if not work.is_planned:
                self._running.append(work)
        return builder.finish(dense_mask)

    def _waiting_tokens(self, works: Iterable[Work]) -> list[float]:
        """Return by shard how many tokens requests still have to compute there."""
        tokens = [0.0] * self._shape.shards
        for work in works:
            remaining = work.remaining_tokens / len(work.shards)
            for shard in work.shards:
                tokens[shard] += remaining
        return tokens

    def _admit(self) -> None:
        if not self._waiting:
            return
        waiting_tokens = self._waiting_tokens(self._running)
        while self._waiting and len(self._running) < self._max_running:
            # A request that found no room finds none before some page is given out, computed or free.
            tried = self._waiting[0], [(home.headroom, home.cache.statistics.cached_pages) for home in self._homes]
            if tried == self._blocked:
                return
            work = self._begin(self._waiting[0], waiting_tokens)
            if work is None:
                self._blocked = tried
                return
            logger.debug("request %d: %s, %s", work.answer.id, work.choice.algorithm, work.choice.reason)
            self._running.append(work)
            self._unread[work.answer.id] = work
            self._waiting.popleft()
            for shard in work.shards:
                waiting_tokens[shard] += work.remaining_tokens / len(work.shards)

    def _begin(self, waiting: _Waiting, waiting_tokens: list[float]) -> Work | None:
        """Begin a request on the cheapest shards that have room for it, or return None if none have."""
        for homes in self._rank(waiting.request, waiting_tokens):
            work = self._begin_on(homes, waiting)
            if all(work.missing_pages(home.shard) <= home.headroom for home in homes):
                return work
            work.drop(count=False)
        return None

    def _rank(self, request: ScoreRequest, waiting_tokens: list[float]) -> list[list[Home]]:
        if len(self._homes) == 1:
            return [self._homes]
        query, anew = _shared_query(request), request.query_reads > 0
        states = []
        for home, tokens in zip(self._homes, waiting_tokens, strict=True):
            cached = home.cache.count_cached(home.cache.lock(query, request.cache_salt, anew=anew))
            states.append(ShardState(tokens, cached, home.cache.statistics.free_pages))
        is_alone = not self._running and len(self._waiting) == 1
        ranked = rank_homes(len(query), len(request.item_tokens), states, is_alone=is_alone)
        return [[self._homes[shard] for shard in shards] for shards in ranked]

    def _begin_on(self, homes: list[Home], waiting: _Waiting) -> Work:
        shape, request = self._shape, waiting.request
        layout = request.layout.over(self._layout)
        query = _shared_query(request)
        lock = QueryLock(homes, query, request.cache_salt, anew=request.query_reads > 0)
        if layout.algorithm != "serial":
            lock.match()
        size = RequestSize(
            query_tokens=len(query) - lock.done,
            cached_tokens=lock.done,
            num_items=request.num_items,
            num_item_tokens=len(request.item_tokens),
            token_budget=shape.tokens * len(homes),
        )
        choice = choose(layout.algorithm or "auto", layout.mask or "auto", size)
        if choice.algorithm == "serial":
            lock.release(count=False)
            lock = QueryLock(homes, request.query[:0])
            request = query_as_item(request)
        answer = Answer(waiting.id, waiting.request, waiting.places)
        work = Work(answer, request, choice, lock, layout.chunk_size, shape.scored)
        work.timings_ms["queue"] = (time.perf_counter() - waiting.arrived) * 1e3
        return work


def _shared_query(request: ScoreRequest) -> Int32[np.ndarray, " tokens"]:
    """Return the part of the query that some item sees, or all of it if it is read."""
    return request.query if request.query_reads else request.query[: int(request.context_lens.max())]
