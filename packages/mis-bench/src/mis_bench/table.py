"""Tables: described once by their columns, shown in a terminal, in Markdown and on the report's page."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

import rich.table
from rich.console import Console
from rich.text import Text

Cell = str | int | float | None
Described = TypeVar("Described")

_NUMBER = re.compile(r"[-+]?[\d,.]+ ?%?( to [-+]?[\d,.]+ ?%?)?( \(.*\))?|-")
_BAD = ("fail", "missed", "not eligible", "not run", "skipped")
_NO_TERMINAL_WIDTH = 240  # columns of a file or a pipe

_MARKUP = re.compile(
    r"[\\`*<\[\]|~]"  # wherever it stands
    r"|(?<![^\W_])_|_(?![^\W_])"  # between letters it is no markup
    r"|&(?=#?\w+;)"
    r"|^[-+](?=\s)|^[>#]|(?<=\s)#(?=#*$)"  # at the ends of a line
)
_NUMBERED = re.compile(r"^(\d+)(?=[.)](?:\s|$))")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; columns of numbers are set to the right.

    Attributes:
        caption: One line.
        header: Of each column.
        rows: As many texts each as there are columns.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, caption: str, rows: Iterable[Described], columns: Mapping[str, Callable[[Described], Cell]]) -> "Table":
        """Describe a table by its columns; one that has no value in any row is left out.

        Args:
            caption: One line.
            rows: Of any kind.
            columns: By heading, what to write for a row: a text, a number (`number` writes it) or None.
        """
        rows = list(rows)
        cells = {heading: [of_row(row) for row in rows] for heading, of_row in columns.items()}
        kept = [heading for heading, column in cells.items() if any(cell not in (None, "") for cell in column)]
        texts = [[_text(cells[heading][index]) for heading in kept] for index in range(len(rows))]
        return cls(caption, kept, texts)

    @classmethod
    def of_cells(cls, caption: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> "Table":
        """Describe a table as `of` does, by rows of a value for each heading."""
        return cls.of(caption, rows, {heading: itemgetter(index) for index, heading in enumerate(header)})

    def is_numeric(self, column: int) -> bool:
        """Whether every cell of a column is a number, a range of two, or `-`."""
        return all(_NUMBER.fullmatch(row[column]) for row in self.rows)

    def as_markdown(self) -> str:
        """Return a Markdown table under its caption; no text in it is markup."""
        rule = ["---:" if self.is_numeric(column) else "---" for column in range(len(self.header))]
        header, *rows = ([escaped(cell) for cell in row] for row in (self.header, *self.rows))
        return "\n".join(
            [f"{escaped(self.caption)}:", "", *(f"| {' | '.join(row)} |" for row in (header, rule, *rows))]
        )

    def show(self) -> None:
        """Print on standard output; where that is no terminal, without lines and the caption in one line."""
        console = Console()
        made = rich.table.Table(title=Text(self.caption), title_justify="left")
        if not console.is_terminal:
            console, made.box, made.title = Console(width=_NO_TERMINAL_WIDTH), None, None
            console.print(Text(self.caption), soft_wrap=True)
        for column, heading in enumerate(self.header):
            justify = "right" if self.is_numeric(column) else "left"
            made.add_column(Text(heading), justify=justify, overflow="fold")
        for row in self.rows:
            made.add_row(*(Text(cell, style="bold red" if is_bad(cell) else "") for cell in row))
        console.print(made)


def escaped(text: str) -> str:
    """Return a text as one line of Markdown that shows it as it is, but for white space: nothing in it is markup."""
    return _NUMBERED.sub(r"\1\\", _MARKUP.sub(r"\\\g<0>", " ".join(text.split())))


def is_bad(cell: str) -> bool:
    """Whether a cell is a verdict that a reader should see first."""
    return cell.lower().startswith(_BAD)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with significant digits, thousands separated, and no exponent; `-` of None.

    Integers have all their digits.
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{float(f'{value:.{digits}g}'):,.12f}".rstrip("0").rstrip(".") if value else "0"


def _text(value: Cell) -> str:
    return value or "-" if isinstance(value, str) else number(value)
