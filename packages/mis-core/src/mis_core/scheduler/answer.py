"""What is read of one request, collected as steps end: it outlives the planning."""

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.scheduler.plan import Reading
from mis_core.scoring.request import ScoreRequest


class Answer:
    """Owns the readings of a request without duplicates; the values of its items come in any order.

    `places` has for every item of the original request its place among the request's, or is None if they are the same.

    Attributes:
        id: The request's number.
        is_cancelled: Whether nobody waits for it any more.
    """

    def __init__(self, id: int, request: ScoreRequest, places: Int32[np.ndarray, " items"] | None) -> None:
        self.id = id
        self.is_cancelled = False
        self._places = slice(None) if places is None else places
        self._unread = request.num_items
        self._logits = np.empty((request.num_items, request.label_ids.shape[1]), np.float32)
        self._normalisers = np.empty(request.num_items, np.float32) if request.needs_log_sum_exp else None

    @property
    def is_complete(self) -> bool:
        """Whether every item's values have arrived."""
        return self._unread == 0

    def store(self, reading: Reading, logits: np.ndarray, normalisers: np.ndarray | None) -> None:
        """Store what was read at some items."""
        self._logits[reading.items] = logits
        if self._normalisers is not None:
            self._normalisers[reading.items] = normalisers
        self._unread -= len(reading.items)

    def values(self) -> tuple[Float32[np.ndarray, "items labels"], Float32[np.ndarray, " items"] | None]:
        """Return logits and normalisers of all items of the original request."""
        normalisers = None if self._normalisers is None else self._normalisers[self._places]
        return self._logits[self._places], normalisers
