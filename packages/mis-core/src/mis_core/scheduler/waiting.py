"""Who waits to begin: requests and sequences in order of arrival, which may pass sequences that find no room.

What a step asks of the line costs the same however long it is. Requests begin strictly in order, so only their first is
ever asked for. Of the sequences, a step tries at most `TRIED` that find no pages, and none while every place is taken;
all others count as passed untried. How many passed a sequence is counted when somebody asks: requests that begin have
rising orders, so those that passed are the last of a sorted list, of which `PASSES` are enough to know.
"""

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Int32

from mis_core.requests import ScoreRequest
from mis_core.scheduler.sequence import Generation

PASSES = 64
"""Requests that may begin before a sequence that came earlier and finds no pages."""

TRIED = 8
"""Sequences that find no pages and are tried in one step."""

Room = list[tuple[int, int, int]]
"""Of each shard: headroom, cached pages, places taken."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request that waits.

    Attributes:
        id: Its number.
        request: The request, with each distinct item once.
        places: For each item of the original request its place among these; None: they are the same items.
        arrived: When it came, in seconds.
        order: Rises from one arrival to the next.
        tried: The room there was when it last found none.
    """

    id: int
    request: ScoreRequest
    places: Int32[np.ndarray, " items"] | None
    arrived: float
    order: int = 0
    tried: Room | None = None


class WaitingLine:
    """Requests and sequences in order of arrival."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Asked] = OrderedDict()
        self._sequences: OrderedDict[int, Generation] = OrderedDict()
        self._last = self._first = 0  # orders given out at the end and at the front
        self._begun: list[int] = []  # orders of the requests that began last, rising
        self._num_begun = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._requests) + len(self._sequences)

    def append(self, waiting: Asked | Generation) -> None:
        """Put a request or a sequence that has arrived at the end."""
        self._last += 1
        waiting.order = self._last
        if isinstance(waiting, Asked):
            self._requests[waiting.id] = waiting
        else:
            waiting.counted = self._num_begun
            self._sequences[waiting.id] = waiting

    def put_back(self, generation: Generation) -> None:
        """Put a sequence that lost its pages before all others."""
        self._first -= 1
        generation.order, generation.counted = self._first, self._num_begun
        self._sequences[generation.id] = generation
        self._sequences.move_to_end(generation.id, last=False)

    def remove(self, id: int) -> bool:
        """Forget whoever has this number; return whether anybody has."""
        return (self._requests.pop(id, None) or self._sequences.pop(id, None)) is not None

    def next(self, passed: int, *, has_place: bool) -> Asked | Generation | None:
        """Return who comes next, or None if nobody may begin in this step.

        Args:
            passed: Sequences that were tried in this step, found no pages and may be passed: the first of the line.
            has_place: Whether a sequence could have a place.
        """
        request = next(iter(self._requests.values()), None)
        if not has_place or passed >= TRIED:
            return request
        sequence = next(islice(self._sequences.values(), passed, None), None)
        if request is None or sequence is None:
            return request or sequence
        return request if request.order < sequence.order else sequence

    def begin(self, waiting: Asked | Generation, passed: list[Generation]) -> None:
        """Take out whoever begins.

        Args:
            waiting: Who it is.
            passed: Sequences that were tried before in this step.
        """
        if isinstance(waiting, Generation):
            del self._sequences[waiting.id]
            waiting.passes = self.passes(waiting)
            for generation in passed:
                generation.passes += 1
            return
        del self._requests[waiting.id]
        self._num_begun += 1
        self._begun.append(waiting.order)
        del self._begun[:-PASSES]

    def passes(self, generation: Generation) -> int:
        """Return how many began that came after a sequence, since it waits for pages; exact below `PASSES`."""
        known = len(self._begun)
        before = bisect_right(self._begun, generation.order)
        counted = generation.counted - (self._num_begun - known)
        return generation.passes + known - max(before, counted)

    def forgive(self, generation: Generation) -> None:
        """Count anew how many pass a sequence."""
        generation.passes, generation.counted = 0, self._num_begun
