"""What is read of one request: asked for as its items are planned, collected as steps end."""

from collections.abc import Hashable

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.scheduler.plan import Reading, Room, StepBuilder
from mis_core.scoring.request import ScoreRequest


class Answer:
    """Collects the values of a request's items, which come in any order."""

    def __init__(self, request: ScoreRequest, owner: Hashable, places: Int32[np.ndarray, " items"] | None) -> None:
        """Begin with nothing read.

        Args:
            request: The request, without duplicates.
            owner: Who is told of the values.
            places: For every item of the original request its place among the request's, or None if the same.
        """
        self._request = request
        self._owner = owner
        self._places = places
        self._unread = request.num_items
        self._logits = np.empty((request.num_items, request.label_ids.shape[1]), np.float32)
        self._normalisers = np.empty(request.num_items, np.float32) if request.needs_log_sum_exp else None

    @property
    def is_complete(self) -> bool:
        """Whether every item's values have arrived."""
        return self._unread == 0

    def read(
        self, builder: StepBuilder, room: Room, rows: Int32[np.ndarray, " items"], items: Int32[np.ndarray, " items"]
    ) -> None:
        """Have the labels of some items read at their last rows."""
        labels = self._request.label_ids
        label_ids = np.broadcast_to(labels, (len(items), labels.shape[1])) if len(labels) == 1 else labels[items]
        builder.read(
            self._owner,
            room,
            rows=rows,
            items=items,
            label_ids=label_ids,
            normalise=self._request.needs_log_sum_exp,
        )

    def store(self, reading: Reading, logits: np.ndarray, normalisers: np.ndarray | None) -> None:
        """Store what was read at some items."""
        self._logits[reading.items] = logits
        if self._normalisers is not None:
            assert normalisers is not None, "the reading asked for normalisers"
            self._normalisers[reading.items] = normalisers
        self._unread -= len(reading.items)

    def values(self) -> tuple[Float32[np.ndarray, "items labels"], Float32[np.ndarray, " items"] | None]:
        """Return logits and normalisers of all items of the original request."""
        if self._places is None:
            return self._logits, self._normalisers
        normalisers = None if self._normalisers is None else self._normalisers[self._places]
        return self._logits[self._places], normalisers
