"""Rows as a table: one set of columns for every command; those that no row fills are left out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mis_bench.figures import Row


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        title: Its heading.
        cell: Text of a row; nothing where it has none.
        is_number: Whether it is set to the right.
    """

    title: str
    cell: Callable[[Row], str]
    is_number: bool = True


def number(value: float | None) -> str:
    """Write a figure; nothing for None."""
    return "" if value is None else f"{value:,.2f}"


def _verdict(row: Row) -> str:
    if row.wins:
        return "wins"
    why = row.reasons if row.status != "ok" else row.objections
    return f"{row.status}: {'; '.join(why)}" if why else row.status


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio.value:.3g} ({row.ratio.spread})"


COLUMNS = (
    Column("row", lambda row: row.name, is_number=False),
    Column("target", lambda row: row.target, is_number=False),
    Column("load", lambda row: row.load, is_number=False),
    Column("cache", lambda row: row.cache, is_number=False),
    Column("dtype", lambda row: row.dtype or "", is_number=False),
    Column("items", lambda row: str(row.num_items)),
    Column("labels", lambda row: str(row.num_labels)),
    Column("calls", lambda row: str(row.calls)),
    Column("failed", lambda row: str(sum(row.failures.values()) or "")),
    Column("items/s", lambda row: number(row.items_per_second and row.items_per_second.value)),
    Column("interval or rounds", lambda row: row.items_per_second.spread if row.items_per_second else ""),
    Column("x reference", _ratio),
    Column("requests/s", lambda row: number(row.requests_per_second and row.requests_per_second.value)),
    Column("goodput/s", lambda row: number(row.goodput_rps)),
    Column("p50 ms", lambda row: number(row.latency and row.latency.p50_ms)),
    Column("p95 ms", lambda row: number(row.latency and row.latency.p95_ms)),
    Column("p99 ms", lambda row: number(row.latency and row.latency.p99_ms)),
    Column("mean ms", lambda row: number(row.latency and row.latency.mean_ms)),
    Column("std ms", lambda row: number(row.latency and row.latency.std_ms)),
    Column("call p95 ms", lambda row: number(row.chunk_p95_ms)),
    Column("first ms", lambda row: number(row.first_ms)),
    Column("steps/call", lambda row: "" if row.steps_per_call is None else f"{row.steps_per_call:.1f}"),
    Column("items/usd", lambda row: "" if row.items_per_usd is None else f"{row.items_per_usd:,.0f}"),
    Column("max diff", lambda row: "" if row.max_abs is None else f"{row.max_abs:.5f}"),
    Column("status", _verdict, is_number=False),
)
"""All columns, in order."""


def cells(rows: Sequence[Row]) -> tuple[list[Column], list[list[str]]]:
    """Return the columns that say something about rows, and the rows' cells."""
    texts = [[column.cell(row) for column in COLUMNS] for row in rows]
    kept = [place for place in range(len(COLUMNS)) if any(line[place] for line in texts)]
    return [COLUMNS[place] for place in kept], [[line[place] for place in kept] for line in texts]


def as_markdown(header: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with pipes in cells escaped."""
    titles = list(header)
    escaped = ([cell.replace("|", "/") for cell in line] for line in [titles, ["---"] * len(titles), *lines])
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)
