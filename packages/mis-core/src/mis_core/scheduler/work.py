"""One request on its way through steps: what of it is planned, what is read, and the pages it holds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.cache import Prefix, PrefixCache
from mis_core.ragged import ramp
from mis_core.scheduler.algorithm import Choice
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, Reading, StepBuilder
from mis_core.scoring.request import LabelLogits, ScoreRequest


@dataclass(slots=True, eq=False)
class _PagedItem:
    """An item that is computed in pages of its own, chunk by chunk, behind whole pages of the query.

    Attributes:
        item: Its number.
        tokens: Tokens from the first page boundary on: what its last shared page lacks, then the item.
        base: Pages shared with the query.
        pages: Its own pages.
        done: Tokens planned.
    """

    item: int
    tokens: Int32[np.ndarray, " tokens"]
    base: Int32[np.ndarray, " base_pages"]
    pages: Int32[np.ndarray, " pages"]
    done: int = 0


@dataclass(slots=True, eq=False)
class Work:
    """Plans one admitted request, part by part, and collects what was read.

    Attributes:
        id: The request's number.
        request: The request, without duplicates.
        places: For every item of the original request its place among the request's, or None if the same.
        choice: Its layout.
        prefix: The query's pages.
        cache: Where further pages come from.
        spare: Pages that can be had beyond what all running requests may still need; negative while pages
            wait for the end of a step to be free again.
        chunk_size: Most items in a step; 0: as many as fit.
        timings_ms: Milliseconds by stage.
    """

    id: int
    request: ScoreRequest
    places: Int32[np.ndarray, " items"] | None
    choice: Choice
    prefix: Prefix
    cache: PrefixCache
    spare: Callable[[], int]
    chunk_size: int = 0
    timings_ms: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    first_planned: float | None = None
    is_cancelled: bool = False
    retired: list[np.ndarray] = field(default_factory=list)
    _short: np.ndarray = field(init=False)
    _short_ends: np.ndarray = field(init=False)
    _next_short: int = 0
    _long: np.ndarray = field(init=False)
    _next_long: int = 0
    _paged: _PagedItem | None = None
    _items_in_step: int = 0
    _query_in_step: bool = False
    _unread: int = field(init=False)
    _logits: Float32[np.ndarray, "items labels"] = field(init=False)
    _normalisers: Float32[np.ndarray, " items"] | None = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        lens = np.diff(request.item_starts)
        is_long = lens > LONG_ITEM if self.choice.algorithm != "serial" else np.ones(len(lens), bool)
        self._short, self._long = np.flatnonzero(~is_long).astype(np.int32), np.flatnonzero(is_long).astype(np.int32)
        self._short_ends = np.cumsum(lens[self._short])
        self._unread = request.num_items
        self._logits = np.empty((request.num_items, request.label_ids.shape[1]), np.float32)
        self._normalisers = np.empty(request.num_items, np.float32) if request.needs_log_sum_exp else None

    @property
    def is_planned(self) -> bool:
        """Whether every token is in some step."""
        return self._next_short == len(self._short) and self._next_long == len(self._long)

    @property
    def is_read(self) -> bool:
        """Whether every item's values have arrived."""
        return self._unread == 0

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned."""
        query = len(self.prefix.tokens) - self.prefix.done
        short = self._short_ends[-1] if len(self._short) else 0
        planned = self._short_ends[self._next_short - 1] if self._next_short else 0
        rest = self._long[self._next_long :]
        long = np.diff(self.request.item_starts)[rest].sum() + self._repeated(rest).sum()
        return int(query + short - planned + long - (self._paged.done if self._paged else 0))

    @property
    def missing_pages(self) -> int:
        """Most pages that this request will still take."""
        own = len(self._paged.pages) if self._paged else 0
        return self.prefix.missing_pages + self.longest_paged_item - own

    @property
    def longest_paged_item(self) -> int:
        """Pages that the longest item still to come, or under way, takes for itself."""
        rest = self._long[self._next_long :]
        if len(rest) == 0:
            return 0
        lens = np.diff(self.request.item_starts)[rest]
        return int((-(-(self._repeated(rest) + lens) // PAGE_SIZE)).max())

    @property
    def own_pages(self) -> int:
        """Pages held outside the prefix cache's tree."""
        return (len(self._paged.pages) if self._paged else 0) + sum(map(len, self.retired))

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
            self.first_planned = self.first_planned or began
        self.timings_ms["plan"] = self.timings_ms.get("plan", 0.0) + (time.perf_counter() - began) * 1e3
        return added

    def end_step(self) -> None:
        """Free what the step just planned was the last to read. Only now: the same step must not overwrite it."""
        self.steps += self._items_in_step > 0 or self._query_in_step
        self._items_in_step, self._query_in_step = 0, False
        for pages in self.retired:
            self.cache.give(pages)
        self.retired = []
        if self.is_planned:
            self.prefix.release()

    def drop(self) -> None:
        """Free everything; between steps only."""
        if self._paged is not None:
            self.retired.append(self._paged.pages)
            self._paged = None
        for pages in self.retired:
            self.cache.give(pages)
        self.retired = []
        self.prefix.release()

    def take(self, reading: Reading, logits: np.ndarray, normalisers: np.ndarray | None) -> None:
        """Store what was read at some items."""
        self._logits[reading.items] = logits
        if self._normalisers is not None:
            assert normalisers is not None, "the reading asked for normalisers"
            self._normalisers[reading.items] = normalisers
        self._unread -= len(reading.items)

    def result(self) -> LabelLogits:
        """Return the values of all items of the original request."""
        logits, normalisers = self._logits, self._normalisers
        if self.places is not None:
            logits = logits[self.places]
            normalisers = None if normalisers is None else normalisers[self.places]
        return LabelLogits(
            logits,
            normalisers,
            cached_tokens=self.prefix.cached,
            timings_ms=self.timings_ms,
            algorithm=self.choice.algorithm + (" (dense mask)" if self.choice.dense_mask else ""),
            reason=self.choice.reason,
            steps=self.steps,
        )

    def _repeated(self, items: np.ndarray) -> np.ndarray:
        """Query tokens that each paged item computes again: those behind the last page it shares."""
        context = self.request.context_lens[items]
        return context if self.choice.algorithm == "serial" else context % PAGE_SIZE

    def _add(self, builder: StepBuilder, limit: int) -> int:
        if self.prefix.done < len(self.prefix.tokens):
            self.prefix.adopt()
        if self.prefix.done < len(self.prefix.tokens):
            return self._add_query(builder, limit)
        if self._query_in_step and self.choice.algorithm == "prefill_extend":
            return 0
        if self._next_short < len(self._short):
            return self._add_short(builder, limit)
        if self._next_long < len(self._long):
            return self._add_paged(builder, limit)
        return 0

    def _add_query(self, builder: StepBuilder, limit: int) -> int:
        rest = len(self.prefix.tokens) - self.prefix.done
        room, _ = builder.open(self.prefix, paged=True, least=min(rest, PAGE_SIZE), scored=False)
        count = min(rest, room, limit)
        if count < rest:
            count -= count % PAGE_SIZE
        if count == 0:
            return 0
        begin = self.prefix.done
        self.prefix.extend(count)
        self._query_in_step = True
        builder.add(
            self.prefix,
            pages=self.prefix.pages,
            token_ids=self.prefix.tokens[begin : begin + count],
            lens=np.array([count], np.int32),
            context_lens=np.array([begin], np.int32),
            paged=True,
        )
        return count

    def _add_short(self, builder: StepBuilder, limit: int) -> int:
        first, ends, request = self._next_short, self._short_ends, self.request
        begin = ends[first - 1] if first else 0
        room, rows = builder.open(self.prefix, paged=False, least=int(ends[first] - begin), scored=True)
        if self.chunk_size:
            rows = min(rows, self.chunk_size - self._items_in_step)
        fitting = int(np.searchsorted(ends, begin + min(room, limit), side="right"))
        last = min(fitting, first + rows)
        if last <= first:
            return 0
        items = self._short[first:last]
        starts, lens = request.item_starts[items], np.diff(request.item_starts)[items]
        shard, rows_of = builder.add(
            self.prefix,
            pages=self.prefix.pages,
            token_ids=request.item_tokens[np.repeat(starts, lens) + ramp(lens)],
            lens=lens,
            context_lens=request.context_lens[items],
            paged=False,
        )
        self._read(builder, shard, rows_of, items)
        self._next_short = last
        self._items_in_step += len(items)
        return int(lens.sum())

    def _add_paged(self, builder: StepBuilder, limit: int) -> int:
        if self._items_in_step and self.choice.algorithm == "serial":
            return 0  # one sequence in a step
        if self.chunk_size and self._items_in_step >= self.chunk_size:
            return 0
        if self._paged is None and self.spare() < 0:
            return 0
        paged = self._paged = self._paged or self._begin_paged(int(self._long[self._next_long]))
        rest = len(paged.tokens) - paged.done
        room, _ = builder.open(paged, paged=True, least=min(rest, PAGE_SIZE), scored=True)
        count = min(rest, room, limit)
        if count < rest:
            count -= count % PAGE_SIZE
        if count == 0:
            return 0
        shard, row = builder.add(
            paged,
            pages=np.concatenate([paged.base, paged.pages]),
            token_ids=paged.tokens[paged.done : paged.done + count],
            lens=np.array([count], np.int32),
            context_lens=np.array([len(paged.base) * PAGE_SIZE + paged.done], np.int32),
            paged=True,
        )
        paged.done += count
        self._items_in_step += 1
        if paged.done == len(paged.tokens):
            self._read(builder, shard, row, np.array([paged.item], np.int32))
            self.retired.append(paged.pages)
            self._paged = None
            self._next_long += 1
        return count

    def _begin_paged(self, item: int) -> _PagedItem:
        request = self.request
        context = int(request.context_lens[item])
        shared = context - int(self._repeated(np.array([item]))[0])
        own = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        tokens = np.concatenate([request.query[shared:context], own])
        pages = self.cache.take(-(-len(tokens) // PAGE_SIZE))
        return _PagedItem(item, tokens, self.prefix.pages[: shared // PAGE_SIZE], pages)

    def _read(self, builder: StepBuilder, shard: int, rows: np.ndarray, items: np.ndarray) -> None:
        labels = self.request.label_ids
        builder.read(
            self,
            shard=shard,
            rows=rows,
            items=items,
            label_ids=np.broadcast_to(labels, (len(items), labels.shape[1])) if len(labels) == 1 else labels[items],
            normalise=self.request.needs_log_sum_exp,
        )
