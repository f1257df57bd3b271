"""The scheduler: requests in, steps out, values back in, answers out. Knows neither devices nor threads.

Requests wait in order of arrival until the KV cache has room for all they may need; so a request that
runs never waits for pages, and none can block another for ever. Those that run take turns: every step
gives each the same share of its tokens, then what is left to whoever wants more.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.cache import CacheStatistics, PrefixCache
from mis_core.scheduler.algorithm import RequestSize, choose
from mis_core.scheduler.answer import Answer
from mis_core.scheduler.duplicates import without_duplicates
from mis_core.scheduler.parts import Headroom
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, StepBuilder, StepPlan, StepShape
from mis_core.scheduler.reading import Values
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
            pages: Pages of the KV cache, at least what the longest context and one page more need.
            layout: How requests are laid out unless they say otherwise.
            max_running: Most requests that take turns.
            prefix_cache: Whether queries are kept for later requests.
        """
        self._shape = shape
        self._layout = layout
        self._max_running = max_running
        self._cache = PrefixCache(pages, PAGE_SIZE, enabled=prefix_cache)
        self._waiting: deque[_Waiting] = deque()
        self._running: deque[Work] = deque()
        self._headroom = Headroom(self._cache, self._running)
        self._unread: dict[int, Work] = {}

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
        """State of the prefix cache."""
        return self._cache.statistics

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
        self._cache = PrefixCache(self._cache.statistics.pages, PAGE_SIZE, enabled=self._cache.enabled)
        self._headroom = Headroom(self._cache, self._running)
        return ids

    def flush(self) -> int:
        """Forget every prefix that no request holds; return how many pages that freed."""
        return self._cache.flush()

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
        self._cache.check(private=sum(work.own_pages for work in self._running))

    def _plan(self, works: list[Work], dense_mask: bool = False) -> StepPlan | None:
        shape = self._shape
        wanted = sum(work.remaining_tokens for work in works)
        even = -(-wanted // (shape.shards * LONG_ITEM)) * LONG_ITEM  # shards are padded to the fullest
        builder = StepBuilder(shape, even if shape.shards > 1 else None)
        # Less than a run of rows with one context would be padded up to it.
        least = max(LONG_ITEM, shape.alignment)
        share = max(shape.tokens * shape.shards // len(works) // PAGE_SIZE * PAGE_SIZE, least)
        served = [work for work in works if work.contribute(builder, share)]
        for work in served:
            work.contribute(builder, shape.tokens * shape.shards)
        for work in served:
            self._running.remove(work)
            work.end_step()
            if not work.is_planned:
                self._running.append(work)
        return builder.finish(dense_mask)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            work = self._begin(self._waiting[0])
            if work.missing_pages > self._headroom.pages:
                work.drop(count=False)
                return
            logger.debug("request %d: %s, %s", work.answer.id, work.choice.algorithm, work.choice.reason)
            self._running.append(work)
            self._unread[work.answer.id] = work
            self._waiting.popleft()

    def _begin(self, waiting: _Waiting) -> Work:
        shape, request = self._shape, waiting.request
        layout = request.layout.over(self._layout)
        shared = len(request.query) if request.query_reads else int(request.context_lens.max())
        lock = self._cache.lock(request.query[:shared], request.cache_salt, anew=request.query_reads > 0)
        if layout.algorithm != "serial":
            self._cache.match(lock)
        size = RequestSize(
            query_tokens=shared - lock.done,
            cached_tokens=lock.done,
            num_items=request.num_items,
            num_item_tokens=len(request.item_tokens),
            token_budget=shape.tokens * shape.shards,
        )
        choice = choose(layout.algorithm or "auto", layout.mask or "auto", size)
        if choice.algorithm == "serial":
            self._cache.release(lock, count=False)
            lock = self._cache.lock(request.query[:0])
            request = query_as_item(request)
        answer = Answer(waiting.id, waiting.request, waiting.places)
        work = Work(answer, request, choice, lock, self._headroom, layout.chunk_size, shape.scored)
        work.timings_ms["queue"] = (time.perf_counter() - waiting.arrived) * 1e3
        return work
