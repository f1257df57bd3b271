"""Where the segments of one request are computed, step by step: what `return_layout` shows."""

import numpy as np
from jaxtyping import Int32

from mis_core.scheduler.plan import Room

QUERY = -1
"""The number of the query among the segments of a request."""


class Placements:
    """Remembers which rows of which step each segment of a request got.

    Attributes:
        num_steps: Steps so far that compute some of the request.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._placed: list[np.ndarray] = []
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
        self._placed.append(np.stack([steps, shards, rows, segments, lens, context_lens], axis=1))
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
        rows = np.concatenate(self._placed).astype(np.int32)
        if originals is not None:
            segments = rows[:, 3]
            rows[:, 3] = np.where(segments == QUERY, QUERY, originals[segments])
        return rows
