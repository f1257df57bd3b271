"""What is kept of one request until it is answered: the values read of it, and where its segments were computed."""

from typing import Any

import numpy as np
from jaxtyping import Int32

from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.scheduler.plan import Room
from mis_core.scheduler.reading import Reading, Values

QUERY = -1
"""The number of the query among the segments of a request."""


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
