"""What is answered to one request: identical items are computed once, values and placements collected step by step."""

import dataclasses
import secrets
from typing import Any

import numpy as np
from jaxtyping import Int32

from mis_core.ragged import offsets, ramp, rows_at
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.scheduler.packing import Room
from mis_core.scheduler.reading import Reading, Values

QUERY = -1
"""The number of the query among the segments of a request."""

# Drawn per process: nobody outside can make different items look alike, and the tokens are compared anyway.
_RNG = np.random.default_rng(secrets.randbits(128))


class Answer:
    """Collects the values of a request without duplicates, whose rows come in any order.

    `distinct` has for every row of the original request its number among the request's, or is None if they are the
    same.

    Attributes:
        request: What is read.
    """

    def __init__(self, request: ScoreRequest, distinct: Int32[np.ndarray, " rows"] | None) -> None:
        rows, items, top = request.num_reads, request.num_items, request.top_tokens
        self.request = request
        self._distinct = distinct
        self._unread = rows
        self._read = Values(
            logits=np.empty((rows, request.label_ids.shape[1]), np.float32),
            log_sum_exp=np.empty(rows, np.float32) if request.needs_log_sum_exp else None,
            top_ids=np.empty((rows, top), np.int32) if top else None,
            top_logits=np.empty((rows, top), np.float32) if top else None,
            next_ids=np.empty(items, np.int32) if request.sampling else None,
            next_logits=np.empty(items, np.float32) if request.sampling else None,
        )

    @property
    def is_complete(self) -> bool:
        """Whether every row's values have arrived."""
        return self._unread == 0

    @property
    def originals(self) -> Int32[np.ndarray, " items"] | None:
        """For each item the first of the original request that is the same; None: they are the same items."""
        if self._distinct is None:
            return None
        return np.unique(self._distinct, return_index=True)[1].astype(np.int32)

    def store(self, reading: Reading, values: Values) -> None:
        """Store what was read at some rows."""
        mine, rows = self._read, reading.rows
        _put(mine.logits, rows, values.logits)
        _put(mine.log_sum_exp, rows, values.log_sum_exp)
        _put(mine.top_ids, rows, values.top_ids)
        _put(mine.top_logits, rows, values.top_logits)
        if reading.draws is not None:
            _put(mine.next_ids, reading.draws.items, values.next_ids)
            _put(mine.next_logits, reading.draws.items, values.next_logits)
        self._unread -= len(rows)

    def output(self, **about: Any) -> EngineOutput:
        """Return the values of all rows of the original request, and what else is said about it."""
        read = self._read

        def repeated(values: np.ndarray | None) -> np.ndarray | None:
            return values if values is None or self._distinct is None else values[self._distinct]

        return EngineOutput(
            read.logits if self._distinct is None else read.logits[self._distinct],
            repeated(read.log_sum_exp),
            top_ids=repeated(read.top_ids),
            top_logits=repeated(read.top_logits),
            next_ids=read.next_ids,
            next_logits=read.next_logits,
            **about,
        )


class Placements:
    """Remembers which rows of which step each segment of a request got: what `return_layout` shows.

    Attributes:
        num_steps: Steps so far that compute some of the request.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._runs: list[np.ndarray] = []
        self._is_in_step = False

    def add(
        self,
        room: Room,
        segments: Int32[np.ndarray, " placements"],
        lens: Int32[np.ndarray, " placements"],
        context_lens: Int32[np.ndarray, " placements"],
    ) -> None:
        """Remember what was put into a room of the step being planned.

        Args:
            room: The room, from its first row on.
            segments: Numbers of the segments, or `QUERY`.
            lens: New tokens of each.
            context_lens: Tokens before each in its pages.
        """
        rows = room.start + np.cumsum(lens) - lens
        steps, shards = np.full_like(segments, self.num_steps), np.full_like(segments, room.shard)
        self._runs.append(np.stack([steps, shards, rows, segments, lens, context_lens], axis=1))
        self._is_in_step = True

    def end_step(self) -> None:
        """Go on to the next step, if something was put into this one."""
        self.num_steps += self._is_in_step
        self._is_in_step = False

    def rows(self, originals: Int32[np.ndarray, " segments"] | None) -> Int32[np.ndarray, "placements 6"]:
        """Return one row for each run of tokens: step, shard, first row, segment, tokens, tokens of context.

        Args:
            originals: The number that each segment goes by in the request as it was sent; None: its own.
        """
        rows = np.concatenate(self._runs).astype(np.int32)
        if originals is not None:
            segments = rows[:, 3]
            rows[:, 3] = np.where(segments == QUERY, QUERY, originals[segments])
        return rows


def _put(values: np.ndarray | None, rows: np.ndarray, new: np.ndarray | None) -> None:
    if values is not None:
        values[rows] = new


def without_duplicates(request: ScoreRequest) -> tuple[ScoreRequest, Int32[np.ndarray, " items"] | None]:
    """Return the request with each distinct item once, and for every item its number among them.

    Items are identical if their tokens, their context and their labels are. They are grouped by a random
    linear hash of their tokens (Carter and Wegman, J. Comput. Syst. Sci. 18, 1979), then compared token
    by token. Without duplicates, the request itself and None; so too where other rows than the last one of each item
    are read, or tokens are drawn, each with a key of its own.
    """
    reads_more = request.read_lens is not None or request.read_at is not None or request.query_reads > 0
    if reads_more or request.sampling is not None:
        return request, None
    lens = np.diff(request.item_starts)
    starts = request.item_starts[:-1]
    within = ramp(lens)
    factors = _RNG.integers(1, 2**63, int(lens.max()), np.uint64)
    hashes = np.add.reduceat((request.item_tokens.astype(np.uint64) + 1) * factors[within], starts)
    keys = [hashes, lens.astype(np.uint64), request.context_lens.astype(np.uint64)]
    if len(request.label_ids) > 1:
        label_factors = _RNG.integers(1, 2**63, request.label_ids.shape[1], np.uint64)
        keys.append(((request.label_ids + 2).astype(np.uint64) * label_factors).sum(1, dtype=np.uint64))
    order = np.lexsort(keys)
    alike = np.all([key[order[1:]] == key[order[:-1]] for key in keys], axis=0)
    if not alike.any():
        return request, None
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(np.r_[False, ~alike])
    first = np.full(number.max() + 1, len(order))
    np.minimum.at(first, number, np.arange(len(order)))
    if not _are_equal(request, first[number], lens):
        return request, None  # a collision of 64-bit hashes: compute every item, as if there were no duplicates
    kept = np.sort(first)
    numbers = np.searchsorted(kept, first[number]).astype(np.int32)
    return _chosen(request, kept, lens), numbers


def _are_equal(request: ScoreRequest, first: np.ndarray, lens: np.ndarray) -> bool:
    """Whether each item equals the first of its group."""
    tokens = request.item_tokens
    same_tokens = np.array_equal(rows_at(tokens, request.item_starts[:-1][first], lens), tokens)
    labels = request.label_ids
    return same_tokens and (len(labels) == 1 or np.array_equal(labels[first], labels))


def _chosen(request: ScoreRequest, items: np.ndarray, lens: np.ndarray) -> ScoreRequest:
    """Return the request with some of its items only."""
    kept_lens = lens[items]
    return dataclasses.replace(
        request,
        item_tokens=rows_at(request.item_tokens, request.item_starts[items], kept_lens),
        item_starts=offsets(kept_lens),
        context_lens=request.context_lens[items],
        label_ids=request.label_ids if len(request.label_ids) == 1 else request.label_ids[items],
    )
