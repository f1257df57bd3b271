"""Who waits to begin: requests in order of arrival, of which some may be passed where they find no room.

What a step asks of the line costs the same however long it is. Requests for scores begin strictly in order, so only
their first is ever asked for. Of the sequences, a step tries at most `TRIED` that find no pages, and none while every
slot is taken; all others count as passed untried. How many passed a sequence is counted when somebody asks: requests
that begin have rising orders, so those that passed are the last of a sorted list, of which `PASSES` are enough to know.
"""

from bisect import bisect_right
from collections import OrderedDict
from itertools import islice

from mis_core.scheduler.run import Waiting

PASSES = 64
"""Requests that may begin before a sequence that came earlier and finds no pages."""

TRIED = 8
"""Sequences that find no pages and are tried in one step."""


class WaitingLine:
    """Those that wait, in order of arrival."""

    def __init__(self) -> None:
        self._strict: OrderedDict[int, Waiting] = OrderedDict()
        self._passable: OrderedDict[int, Waiting] = OrderedDict()
        self._last = self._first = 0  # orders given out at the end and at the front
        self._begun: list[int] = []  # orders of the strict ones that began last, rising
        self._num_begun = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._strict) + len(self._passable)

    def append(self, waiting: Waiting) -> None:
        """Put one that has arrived at the end."""
        self._last += 1
        waiting.order, waiting.counted = self._last, self._num_begun
        (self._passable if waiting.can_be_passed else self._strict)[waiting.id] = waiting

    def put_back(self, waiting: Waiting) -> None:
        """Put one that can be passed and lost its pages before all others."""
        self._first -= 1
        waiting.order, waiting.counted = self._first, self._num_begun
        self._passable[waiting.id] = waiting
        self._passable.move_to_end(waiting.id, last=False)

    def remove(self, id: int) -> bool:
        """Forget whoever has this number; return whether anybody has."""
        return (self._strict.pop(id, None) or self._passable.pop(id, None)) is not None

    def next(self, passed: int, *, has_slot: bool) -> Waiting | None:
        """Return who comes next, or None if nobody may begin in this step.

        Args:
            passed: How many were tried in this step, found no pages and may be passed: the first of the line.
            has_slot: Whether some shard has a free slot.
        """
        strict = next(iter(self._strict.values()), None)
        if not has_slot or passed >= TRIED:
            return strict
        passable = next(islice(self._passable.values(), passed, None), None)
        if strict is None or passable is None:
            return strict or passable
        return strict if strict.order < passable.order else passable

    def begin(self, waiting: Waiting, passed: list[Waiting]) -> None:
        """Take out whoever begins.

        Args:
            waiting: Who it is.
            passed: Those that were tried before in this step.
        """
        self.remove(waiting.id)
        if waiting.can_be_passed:
            waiting.passes = self.passes(waiting)
            for each in passed:
                each.passes += 1
            return
        self._num_begun += 1
        self._begun.append(waiting.order)
        del self._begun[:-PASSES]

    def passes(self, waiting: Waiting) -> int:
        """Return how many began that came after it, since it waits for pages; exact below `PASSES`."""
        known = len(self._begun)
        before = bisect_right(self._begun, waiting.order)
        counted = waiting.counted - (self._num_begun - known)
        return waiting.passes + known - max(before, counted)

    def forgive(self, waiting: Waiting) -> None:
        """Count anew how many pass it."""
        waiting.passes, waiting.counted = 0, self._num_begun
