"""One request for scores: as it waits, and on its way through steps, with its query, its items and its answer."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from mis_core.requests import EngineOutput, ScoreRequest, query_as_item
from mis_core.scheduler.algorithm import AlgorithmChoice, RequestSize, choose
from mis_core.scheduler.answer import Answer, Placements
from mis_core.scheduler.homes import Home, Opening
from mis_core.scheduler.packing import StepBuilder
from mis_core.scheduler.paged import PagedItems, QueryPrefill
from mis_core.scheduler.plan import StepShape
from mis_core.scheduler.query_lock import QueryLock
from mis_core.scheduler.reading import Draws, Reading, Values
from mis_core.scheduler.run import Run, Waiting
from mis_core.scheduler.short_items import ShortItems

logger = logging.getLogger(__name__)

_ANY = 1 << 62  # items in a step


@dataclass(slots=True, eq=False)
class WaitingScore(Waiting):
    """A request for scores that waits.

    Attributes:
        request: The request, with each distinct item once.
        distinct: For each item of the original request its number among these; None: they are the same items.
        arrived: When it came, in seconds.
    """

    can_be_passed: ClassVar[bool] = False

    request: ScoreRequest
    distinct: Int32[np.ndarray, " items"] | None
    arrived: float

    def begin(self, opening: Opening) -> Run | None:
        """Begin on the cheapest shards that have room for it, or return None if none have."""
        request, query = self.request, self._shared_query
        anew, more_tokens = request.query_reads > 0, len(request.item_tokens)
        for homes in opening.rank(query, more_tokens, request.cache_salt, anew=anew, may_spread=True):
            run = self._begin_on(homes, query, opening)
            if all(home.has_room(run) for home in homes):
                logger.debug("request %d: %s, %s", self.id, run.choice.algorithm, run.choice.reason)
                return run
            run.drop(count=False)
        return None

    @property
    def _shared_query(self) -> Int32[np.ndarray, " tokens"]:
        """The part of the query that some item sees, or all of it if it is read."""
        request = self.request
        return request.query if request.query_reads else request.query[: int(request.context_lens.max())]

    def _begin_on(self, homes: list[Home], query: Int32[np.ndarray, " tokens"], opening: Opening) -> "ScoreRun":
        shape, request = opening.shape, self.request
        layout = request.layout.over(opening.layout)
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
        run = ScoreRun(self, request, choice, lock, layout.chunk_size, shape)
        run.timings_ms["queue"] = (time.perf_counter() - self.arrived) * 1e3
        return run


class ScoreRun:
    """Plans one request, part by part, and collects its answer.

    Attributes:
        id: The request's number.
        waiting: The request, as it came.
        choice: Its layout.
        homes: Where it has its pages; more than one if it is spread.
        is_cancelled: Whether nobody waits for it any more.
        is_mixed: Whether it is computed in mixed steps.
        timings_ms: Milliseconds by stage.
    """

    def __init__(
        self,
        waiting: WaitingScore,
        request: ScoreRequest,
        choice: AlgorithmChoice,
        lock: QueryLock,
        most_items: int | None,
        shape: StepShape,
    ) -> None:
        """Plan a request from its beginning.

        Args:
            waiting: The request, as it came.
            request: The request, as it is laid out.
            choice: Its layout.
            lock: On its query, on each of its shards.
            most_items: Items in a step; None or 0: as many as fit.
            shape: Room of a step; items that are longer than it takes whole, or read more rows, are cut into chunks.
        """
        self.id = waiting.id
        self.waiting: Waiting = waiting
        self.choice = choice
        self.homes = lock.homes
        self.dense_mask = choice.dense_mask
        self.is_cancelled = False
        self._answer = Answer(waiting.request, waiting.distinct)
        self.timings_ms: dict[str, float] = {"plan": 0.0}
        is_serial = choice.algorithm == "serial"
        reads_too_many = np.diff(request.read_starts) > shape.scored
        is_paged = (np.diff(request.item_starts) > shape.longest_item) | reads_too_many | is_serial
        short, paged = (np.flatnonzero(which).astype(np.int32) for which in (~is_paged, is_paged))
        self._placements = placements = Placements()
        self._query = QueryPrefill(lock, self, placements, request.query_reads)
        self._short = ShortItems(request, short, self._query, self, placements)
        self._paged = PagedItems(request, paged, self._query, self, placements, shares_query=not is_serial)
        longest = max(len(lock.tokens), self._paged.longest_context)
        self.is_mixed = not self.dense_mask and shape.is_mixed(longest)
        self._most_items = 1 if is_serial else most_items or _ANY
        self._first_planned = 0.0

    @property
    def is_planned(self) -> bool:
        """Whether every token is in some step."""
        return self._short.is_planned and self._paged.is_planned

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned."""
        return self._query.remaining_tokens + self._short.remaining_tokens + self._paged.remaining_tokens

    def missing_pages(self, shard: int) -> int:
        """Return the most pages of a shard that this request will still allocate."""
        return self._query.lock.missing_pages(shard) + self._paged.missing_pages if shard in self._query.shards else 0

    def missing_states(self, shard: int) -> int:
        """Return the most slots for states of a shard that this request will still allocate."""
        if shard not in self._query.shards:
            return 0
        return self._query.lock.missing_states(shard) + self._paged.missing_states(shard)

    def own_states(self, shard: int) -> int:
        """Return how many slots for states of a shard are allocated outside its prefix cache's tree."""
        return self._paged.own_states(shard)

    def own_pages(self, shard: int) -> int:
        """Return how many pages of a shard are allocated outside its prefix cache's tree."""
        return self._paged.own_pages(shard)

    def contribute_query(self, builder: StepBuilder, limit: int) -> int:
        """Add parts of its query to a step; return how many tokens were added, at most `limit`."""
        return self._contribute(self._add_query, builder, limit)

    def contribute(self, builder: StepBuilder, limit: int) -> int:
        """Add segments to a step; return how many tokens were added.

        Args:
            builder: The step.
            limit: Most tokens to add, at least `StepShape.longest_item`.
        """
        return self._contribute(self._add, builder, limit)

    def _contribute(self, add: Callable[[StepBuilder, int], int], builder: StepBuilder, limit: int) -> int:
        began = time.perf_counter()
        added = 0
        while added < limit and (more := add(builder, limit - added)):
            added += more
        if added:
            self._first_planned = self._first_planned or began
        self.timings_ms["plan"] += (time.perf_counter() - began) * 1e3
        return added

    def end_step(self) -> None:
        """Free what the step just planned was the last to read."""
        self._placements.end_step()
        self._query.is_in_step, self._short.in_step, self._paged.in_step = False, 0, 0
        self._paged.free_retired()
        self._query.lock.receive()
        if self.is_planned:
            self._query.lock.release()

    def drop(self, *, count: bool = True) -> None:
        """End it and free everything; between steps only.

        Args:
            count: Whether what was found and computed of the query enters the cache's statistics.
        """
        self.is_cancelled = True
        self._paged.free()
        self._query.lock.release(count=count)

    def reading(self, rows: Int32[np.ndarray, " rows"], *, shard: int, first: int) -> Reading:
        """Return what is read at some rows of the request, see `Reading`."""
        request = self._answer.request
        labels = request.label_ids
        label_ids = np.broadcast_to(labels, (len(rows), labels.shape[1])) if len(labels) == 1 else labels[rows]
        draws = _draws(request, rows)
        return Reading(self, rows, shard, first, label_ids, request.needs_log_sum_exp, request.top_tokens, draws)

    def store(self, reading: Reading, values: Values) -> EngineOutput | None:
        """Store what was read at some rows; return the answer once all have been."""
        self._answer.store(reading, values)
        if not self._answer.is_complete:
            return None
        self.timings_ms["device"] = (time.perf_counter() - self._first_planned) * 1e3
        return self._answer.output(
            cached_tokens=self._query.lock.cached,
            timings_ms=self.timings_ms,
            algorithm=self.choice.algorithm + (" (dense mask)" if self.dense_mask else ""),
            reason=self.choice.reason,
            steps=self._placements.num_steps,
            placements=self._placements.rows(self._answer.originals) if self._answer.request.return_layout else None,
        )

    @property
    def _items_in_step(self) -> int:
        return self._short.in_step + self._paged.in_step

    def _add_query(self, builder: StepBuilder, limit: int) -> int:
        return 0 if self._query.lock.match() else self._query.add(builder, limit)

    def _add(self, builder: StepBuilder, limit: int) -> int:
        if not self._query.lock.match():
            return self._query.add(builder, limit)
        if self._query.lock.expects_states or (self._query.is_in_step and self.choice.algorithm == "prefill_extend"):
            return 0
        most_items = self._most_items - self._items_in_step
        if most_items <= 0:
            return 0
        if not self._short.is_planned:
            return self._short.add(builder, limit, most_items)
        if not self._paged.is_planned:
            return self._paged.add(builder, limit)
        return 0


def _draws(request: ScoreRequest, rows: np.ndarray) -> Draws | None:
    sampling = request.sampling
    if sampling is None:
        return None
    last_rows = request.read_starts[1:] - 1  # the row of each item that its next token follows
    items = np.searchsorted(last_rows, rows)  # the query's rows lie before the first of them
    is_last = last_rows[items] == rows
    if not is_last.any():
        return None
    items = items[is_last].astype(np.int32)
    positions = (request.context_lens + np.diff(request.item_starts))[items]
    at = np.flatnonzero(is_last).astype(np.int32)
    return Draws(at, items, sampling.keys[items], positions.astype(np.int32), sampling)
