"""The scheduler: requests in, steps out, values back in, answers and tokens out. Knows neither devices nor threads.

Requests wait in order of arrival until a shard has room for all they may need; so a request that runs
never waits for pages, and none can block another for ever. Then it stays on that shard; one that is alone
may get all of them. Those that run on a shard take turns: every step gives each the same share of its
tokens, then what is left to whoever wants more. Sequences that are written get a token each in decode steps, which
take turns with all others.

A sequence takes pages as it grows, so the pages that another one waits for may be held for long. Therefore `PASSES`
requests may pass a sequence that waits for pages; then none may until those that run are answered. If it still finds no
room, sequences have the pages, and as many may pass again.

What a step costs depends on what runs and on what it plans, never on how many wait (`waiting`).
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int32

from mis_core.cache import CacheStatistics, PrefixCache
from mis_core.requests import EngineOutput, GenerateRequest, Layout, NewToken, ScoreRequest, query_as_item
from mis_core.scheduler.algorithm import RequestSize, choose
from mis_core.scheduler.answer import Answer
from mis_core.scheduler.decoding import Places
from mis_core.scheduler.duplicates import without_duplicates
from mis_core.scheduler.homes import Home, QueryLock
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, StepBuilder, StepPlan, StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.sequence import Generation, Sequence
from mis_core.scheduler.spreading import ShardState, rank_homes
from mis_core.scheduler.waiting import PASSES, Asked, WaitingLine
from mis_core.scheduler.work import Work

logger = logging.getLogger(__name__)


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
        self._waiting = WaitingLine()
        self._running: deque[Work | Sequence] = deque()  # what has segments to be planned
        self._homes = self._empty_homes()
        self._places = Places(shape)
        self._decodes_next = False
        self._unread: dict[int, Work] = {}

    @property
    def has_work(self) -> bool:
        """Whether a step can be planned."""
        return bool(self._waiting or self._running or self._places)

    @property
    def num_requests(self) -> int:
        """Requests that wait, run, or have values to come."""
        return len(self._waiting) + len(self._unread) + len(self._places)

    @property
    def cache(self) -> CacheStatistics:
        """State of the prefix caches of all shards together."""
        return CacheStatistics.total(home.cache.statistics for home in self._homes)

    def submit(self, id: int, request: ScoreRequest) -> None:
        """Append a request. `id` must not be in use."""
        arrived = time.perf_counter()
        self._waiting.append(Asked(id, *without_duplicates(request), arrived))

    def generate(self, id: int, request: GenerateRequest) -> None:
        """Append a sequence to be written. `id` must not be in use."""
        self._waiting.append(Generation(id, request))

    def cancel(self, id: int) -> bool:
        """Forget a request, wherever it is; return whether it was here. What runs on the device is ignored later."""
        if self._waiting.remove(id) or self._end(id):
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
        ids = [*self._unread, *(sequence.id for sequence in self._places.sequences)]
        self._unread.clear()
        self._running.clear()
        self._homes = self._empty_homes()
        self._places = Places(self._shape)
        return ids

    def flush(self) -> int:
        """Forget every prefix that no request holds; return how many pages that freed."""
        return sum(home.cache.flush() for home in self._homes)

    def next_step(self) -> StepPlan | None:
        """Plan one step, or None if nothing waits."""
        self._admit()
        kinds = (self._decode, self._segments) if self._decodes_next else (self._segments, self._decode)
        plan = next((plan for plan in (kind() for kind in kinds) if plan is not None), None)
        self._decodes_next = plan is not None and not plan.is_decoding
        return plan

    def _decode(self) -> StepPlan | None:
        return self._places.plan(self._preempt)

    def _segments(self) -> StepPlan | None:
        if not self._running:
            return None
        if self._running[0].dense_mask:
            return self._plan([self._running[0]], dense_mask=True)
        return self._plan([work for work in self._running if not work.dense_mask])

    def complete(self, plan: StepPlan, values: list[Values]) -> list[tuple[int, EngineOutput | NewToken]]:
        """Take the values of a step's readings; return the requests that are now answered, and new tokens."""
        answered: list[tuple[int, EngineOutput | NewToken]] = []
        for reading, read in zip(plan.readings, values, strict=True):
            answer: Answer | Sequence = reading.owner
            if answer.is_cancelled:
                continue
            if isinstance(answer, Sequence):
                token = answer.store(read)
                answered.append((answer.id, token))
                if token.finish_reason is not None:
                    self._end(answer.id)
                continue
            answer.store(reading, read)
            if answer.is_complete:
                answered.append((answer.id, self._unread.pop(answer.id).result()))
        return answered

    def check(self) -> None:
        """Assert that no page is lost."""
        for home in self._homes:
            holders = {*self._running, *self._places.sequences}
            home.cache.check(private=sum(each.own_pages(home.shard) for each in holders))

    def _empty_homes(self) -> list[Home]:
        caches = (PrefixCache(self._pages, PAGE_SIZE, enabled=self._prefix_cache) for _ in range(self._shape.shards))
        return [Home(shard, cache, self._running) for shard, cache in enumerate(caches)]

    def _plan(self, works: list[Work | Sequence], dense_mask: bool = False) -> StepPlan | None:
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

    def _waiting_tokens(self, works: Iterable[Work | Sequence]) -> list[float]:
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
        passed: list[Generation] = []
        while len(self._running) < self._max_running:
            waiting = self._waiting.next(len(passed), has_place=self._has_place)
            if waiting is None:
                return
            work = self._try(waiting, waiting_tokens)
            if work is not None:
                self._waiting.begin(waiting, passed)
                self._running.append(work)
                for shard in work.shards:
                    waiting_tokens[shard] += work.remaining_tokens / len(work.shards)
            elif isinstance(waiting, Generation) and self._may_pass(waiting):
                passed.append(waiting)
            else:
                return

    def _try(self, waiting: Asked | Generation, waiting_tokens: list[float]) -> Work | Sequence | None:
        """Begin a request or a sequence, or return None if there is no room for it."""
        # What found no room finds none before some page or place is given out, computed or free.
        room = [
            (home.headroom, home.cache.statistics.cached_pages, self._places.taken(home.shard)) for home in self._homes
        ]
        if waiting.tried == room:
            return None
        is_sequence = isinstance(waiting, Generation)
        work = self._seat(waiting, waiting_tokens) if is_sequence else self._begin(waiting, waiting_tokens)
        if work is None:
            waiting.tried = room
        return work

    @property
    def _has_place(self) -> bool:
        """Whether a sequence could have a place on some shard."""
        return any(self._places.next(home.shard) is not None for home in self._homes)

    def _may_pass(self, generation: Generation) -> bool:
        """Return whether others may begin before a sequence that finds no pages."""
        if not self._unread:
            self._waiting.forgive(generation)
        return self._waiting.passes(generation) < PASSES

    def _seat(self, generation: Generation, waiting_tokens: list[float]) -> Sequence | None:
        """Begin a sequence on the cheapest shard that has a place and pages, or return None if none has."""
        request = generation.request
        for (home,) in self._rank(generation.tokens, request.max_new_tokens, request.cache_salt, waiting_tokens):
            place = self._places.next(home.shard)
            if place is None:
                continue
            sequence = Sequence(generation, home, place)
            # One page more for each that is there already, so that it does not lose its own at once.
            if sequence.missing_pages(home.shard) + self._places.taken(home.shard) <= home.headroom:
                self._places.seat(sequence)
                return sequence
            sequence.drop(count=False)
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """End the run of a sequence; it begins again, before all who wait, when there are pages."""
        self._end(sequence.id, count=False)
        self._waiting.put_back(sequence.generation)

    def _end(self, id: int, *, count: bool = True) -> bool:
        """End the run of a sequence, if it has one; return whether it had."""
        sequence = self._places.leave(id)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
        sequence.drop(count=count)
        return True

    def _begin(self, waiting: Asked, waiting_tokens: list[float]) -> Work | None:
        """Begin a request on the cheapest shards that have room for it, or return None if none have."""
        request, alone = waiting.request, not self._running and not self._places and len(self._waiting) == 1
        query, anew = _shared_query(request), request.query_reads > 0
        size = len(request.item_tokens)
        for homes in self._rank(query, size, request.cache_salt, waiting_tokens, anew=anew, is_alone=alone):
            work = self._begin_on(homes, waiting)
            if all(work.missing_pages(home.shard) <= home.headroom for home in homes):
                logger.debug("request %d: %s, %s", work.answer.id, work.choice.algorithm, work.choice.reason)
                self._unread[work.answer.id] = work
                return work
            work.drop(count=False)
        return None

    def _rank(
        self,
        query: Int32[np.ndarray, " tokens"],
        more_tokens: int,
        salt: str | None,
        waiting_tokens: list[float],
        *,
        anew: bool = False,
        is_alone: bool = False,
    ) -> list[list[Home]]:
        if len(self._homes) == 1:
            return [self._homes]
        states = []
        for home, tokens in zip(self._homes, waiting_tokens, strict=True):
            cached = home.cache.count_cached(home.cache.lock(query, salt, anew=anew))
            states.append(ShardState(tokens, cached, home.cache.statistics.free_pages))
        ranked = rank_homes(len(query), more_tokens, states, is_alone=is_alone)
        return [[self._homes[shard] for shard in shards] for shards in ranked]

    def _begin_on(self, homes: list[Home], waiting: Asked) -> Work:
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
