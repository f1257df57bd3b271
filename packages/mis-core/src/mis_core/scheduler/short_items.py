"""Items that keep their keys and values among the new tokens of one step."""

import numpy as np
from jaxtyping import Int32

from mis_core.ragged import rows_at
from mis_core.scheduler.answer import Answer
from mis_core.scheduler.plan import StepBuilder
from mis_core.scheduler.query import QueryPrefill
from mis_core.scoring.request import ScoreRequest


class ShortItems:
    """Plans one request's short items, in their order, as many at a time as fit.

    Attributes:
        in_step: Items in the step being planned.
    """

    def __init__(
        self, request: ScoreRequest, items: Int32[np.ndarray, " short_items"], query: QueryPrefill, answer: Answer
    ) -> None:
        self.in_step = 0
        self._request = request
        self._items = items
        self._query = query
        self._answer = answer
        self._lens = np.diff(request.item_starts)[items]
        self._ends = np.cumsum(self._lens)
        self._next = 0

    @property
    def is_planned(self) -> bool:
        """Whether every item is in some step."""
        return self._next == len(self._items)

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned."""
        return 0 if self.is_planned else int(self._ends[-1]) - self._planned_tokens

    @property
    def _planned_tokens(self) -> int:
        return int(self._ends[self._next - 1]) if self._next else 0

    def add(self, builder: StepBuilder, limit: int, most_items: int) -> int:
        """Add the next items to a step.

        Args:
            builder: The step.
            limit: Most tokens to add.
            most_items: Most items to add.

        Returns:
            The tokens that were added.
        """
        first, begin = self._next, self._planned_tokens
        lock = self._query.lock
        room = builder.find_room(lock, paged=False, least=int(self._ends[first]) - begin, scored=True)
        if not room:
            return 0
        fitting = int(np.searchsorted(self._ends, begin + min(room.tokens, limit), side="right"))
        last = min(fitting, first + room.scored, first + most_items)
        if last <= first:
            return 0
        items, lens = self._items[first:last], self._lens[first:last]
        rows = builder.add(
            room,
            pages=lock.pages,
            token_ids=rows_at(self._request.item_tokens, self._request.item_starts[items], lens),
            lens=lens,
            context_lens=self._request.context_lens[items],
        )
        self._answer.read(builder, room, rows, items)
        self._next = last
        self.in_step += len(items)
        return int(lens.sum())
