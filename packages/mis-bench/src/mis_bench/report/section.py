"""Parts of a report: headline figures, sections with a plot, tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_NUMBER = re.compile(r"[-+]?[\d,.]+%?( to [-+]?[\d,.]+%?)?|-")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; columns of numbers are set to the right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def is_numeric(self, column: int) -> bool:
        """Whether every cell of a column is a number, a range of two, or `-`."""
        return all(_NUMBER.fullmatch(row[column]) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure of the top of the page: `65.8`, `items/s`, and what it is."""

    figure: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot and one sentence that says what to read off it, for eyes and for screen readers."""

    figure: "Figure"
    reading: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        identifier: Its anchor.
        title: Its heading.
        plots: Plots with something in them.
        tables: The same figures, exactly.
        text: What else there is to say.
    """

    identifier: str
    title: str
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    text: Sequence[str] = field(default_factory=tuple)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with significant digits, thousands separated, and no exponent; `-` of None."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{float(f'{value:.{digits}g}'):,.12f}".rstrip("0").rstrip(".")


def milliseconds(value: float | None) -> str:
    """Return a time with its unit, in seconds from 10,000 ms on."""
    if value is None:
        return "-"
    return f"{number(value / 1e3)} s" if value >= 10_000 else f"{number(value)} ms"


def items(count: int) -> str:
    """Return a number of items, `1 item` or `32 items`."""
    return f"{count:,} item{'' if count == 1 else 's'}"


def times(value: float) -> str:
    """Return a ratio, `14.1 times`."""
    return f"{number(value)} times"
