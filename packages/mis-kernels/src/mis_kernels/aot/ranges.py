"""A quantity of which bounds are known: at best, as expected, and at worst."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds or cycles; what is expected lies between the other two."""

    best: float
    expected: float
    worst: float

    @classmethod
    def of(cls, value: float) -> "Range":
        """Return a quantity that is known."""
        return cls(value, value, value)

    def __add__(self, other: "Range") -> "Range":
        """Add what goes well, or badly, together."""
        return Range(self.best + other.best, self.expected + other.expected, self.worst + other.worst)

    def __mul__(self, factor: float) -> "Range":
        """Scale by a number of at least 0."""
        return Range(self.best * factor, self.expected * factor, self.worst * factor)


def total(ranges: Iterable[Range]) -> Range:
    """Add all of them."""
    return reduce(add, ranges, Range.of(0.0))
