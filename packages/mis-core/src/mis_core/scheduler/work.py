"""One admitted request on its way through steps: its query, its items, and what becomes of its answer."""

import time

import numpy as np

from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.scheduler.algorithm import AlgorithmChoice
from mis_core.scheduler.answer import Answer
from mis_core.scheduler.homes import QueryLock
from mis_core.scheduler.parts import PagedItems, QueryPrefill, ShortItems
from mis_core.scheduler.placements import Placements
from mis_core.scheduler.plan import LONG_ITEM, StepBuilder

_ANY = 1 << 62  # items in a step


class Work:
    """Plans one request, part by part.

    Attributes:
        answer: What is read of it.
        choice: Its layout.
        shards: Shards that have its pages; more than one if it is cut.
        timings_ms: Milliseconds by stage.
    """

    def __init__(
        self,
        answer: Answer,
        request: ScoreRequest,
        choice: AlgorithmChoice,
        lock: QueryLock,
        most_items: int | None,
        most_reads: int,
    ) -> None:
        """Plan a request from its beginning.

        Args:
            answer: What is read of it.
            request: The request, as it is laid out.
            choice: Its layout.
            lock: On its query, on each of its shards.
            most_items: Items in a step; None or 0: as many as fit.
            most_reads: Rows that can be read in a step; an item that reads more is computed in chunks.
        """
        self.answer = answer
        self.choice = choice
        self.timings_ms: dict[str, float] = {"plan": 0.0}
        is_serial = choice.algorithm == "serial"
        reads_too_many = np.diff(request.read_starts) > most_reads
        is_paged = (np.diff(request.item_starts) > LONG_ITEM) | reads_too_many | is_serial
        short, paged = (np.flatnonzero(which).astype(np.int32) for which in (~is_paged, is_paged))
        self._placements = placements = Placements()
        self._query = QueryPrefill(lock, answer, placements, request.query_reads)
        self.shards = self._query.shards
        self._short = ShortItems(request, short, self._query, answer, placements)
        self._paged = PagedItems(request, paged, self._query, answer, placements, shares_query=not is_serial)
        self._most_items = 1 if is_serial else most_items or _ANY
        self._first_planned = 0.0

    @property
    def dense_mask(self) -> bool:
        """Whether it asks for materialised masks."""
        return self.choice.dense_mask

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
        return self._query.lock.missing_pages(shard) + self._paged.missing_pages if shard in self.shards else 0

    def own_pages(self, shard: int) -> int:
        """Return how many pages of a shard are allocated outside its prefix cache's tree."""
        return self._paged.own_pages(shard)

    def contribute(self, builder: StepBuilder, limit: int) -> int:
        """Add segments to a step; return how many tokens were added.

        Args:
            builder: The step.
            limit: Most tokens to add, at least `LONG_ITEM`.
        """
        began = time.perf_counter()
        added = 0
        while added < limit and (more := self._add(builder, limit - added)):
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
        if self.is_planned:
            self._query.lock.release()

    def drop(self, *, count: bool = True) -> None:
        """Free everything; between steps only.

        Args:
            count: Whether what was found and computed of the query enters the cache's statistics.
        """
        self._paged.free()
        self._query.lock.release(count=count)

    def result(self) -> EngineOutput:
        """Return the values of all rows of the original request, now that all have been read."""
        self.timings_ms["device"] = (time.perf_counter() - self._first_planned) * 1e3
        return self.answer.output(
            cached_tokens=self._query.lock.cached,
            timings_ms=self.timings_ms,
            algorithm=self.choice.algorithm + (" (dense mask)" if self.choice.dense_mask else ""),
            reason=self.choice.reason,
            steps=self._placements.num_steps,
            placements=self._placements.rows(self.answer.originals) if self.answer.request.return_layout else None,
        )

    @property
    def _items_in_step(self) -> int:
        return self._short.in_step + self._paged.in_step

    def _add(self, builder: StepBuilder, limit: int) -> int:
        if not self._query.lock.match():
            return self._query.add(builder, limit)
        if self._query.is_in_step and self.choice.algorithm == "prefill_extend":
            return 0
        most_items = self._most_items - self._items_in_step
        if most_items <= 0:
            return 0
        if not self._short.is_planned:
            return self._short.add(builder, limit, most_items)
        if not self._paged.is_planned:
            return self._paged.add(builder, limit)
        return 0
