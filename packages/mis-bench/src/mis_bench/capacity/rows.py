"""Where the rows of a simulated step lie: what nobody has of them is padding, and is paid for.

The rules are those of `mis_core.scheduler.plan`, and a test holds the rows of both against each other: queries begin at
pages, runs of different contexts at multiples of the alignment; where that is 1, items fill what queries leave of
their last pages; a step is as long as the next size that is compiled.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mis_core.scheduler.plan import PAGE_SIZE, longest_item


@dataclass(frozen=True, slots=True)
class StepRoom:
    """What a step has room for.

    Attributes:
        tokens: Most rows.
        alignment: Rows that visit contexts together, see `mis_core.scheduler.plan.StepShape`.
        contexts: Most contexts.
        sizes: Rows that steps are compiled for, rising, the last at least `tokens`; none: any number.
    """

    tokens: int
    alignment: int = 1
    contexts: int = 256
    sizes: Sequence[int] = ()

    @property
    def longest_item(self) -> int:
        """Longest item, in tokens, that a step takes whole."""
        return longest_item(self.tokens)


class StepRows:
    """The rows of one step, filled from the first on."""

    def __init__(self, room: StepRoom) -> None:
        self.room = room
        self._used = 0
        self._gaps: list[int] = []
        self._contexts: set[Hashable] = set()
        self._last: Hashable = None

    @property
    def size(self) -> int:
        """Rows that are computed."""
        return next((size for size in self.room.sizes if size >= self._used), self._used)

    def left(self, context: Hashable, *, paged: bool) -> int:
        """Return how many rows at the end a context may have; 0 if the step has room for no other context."""
        if context not in self._contexts and len(self._contexts) == self.room.contexts:
            return 0
        return max(self.room.tokens - self._start(context, paged), 0)

    def add(self, context: Hashable, tokens: int, *, paged: bool) -> int:
        """Add so many tokens at the end, for which there is room; return them."""
        start = self._start(context, paged)
        if start > self._used and self.room.alignment == 1:
            self._gaps.append(start - self._used)
        self._used = start + tokens
        self._contexts.add(context)
        self._last = context
        return tokens

    def add_items(self, context: Hashable, count: int, length: int) -> int:
        """Add up to so many whole items, to gaps first; return how many tokens found room."""
        left = count
        if self.left(context, paged=False):
            for index, gap in enumerate(self._gaps):
                fitting = min(left, gap // length)
                self._gaps[index] -= fitting * length
                left -= fitting
            if count > left:
                self._contexts.add(context)
        fitting = min(left, self.left(context, paged=False) // length)
        if fitting:
            self.add(context, fitting * length, paged=False)
        return (count - left + fitting) * length

    def _start(self, context: Hashable, paged: bool) -> int:
        step = PAGE_SIZE if paged else 1
        if context != self._last:
            step = max(step, self.room.alignment)
        return -(-self._used // step) * step
