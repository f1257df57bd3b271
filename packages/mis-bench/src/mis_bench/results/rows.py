"""Rows of a summary as a table."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from mis_bench.results.figures import Row
from mis_bench.table import Cell, Table, number


def rows_table(caption: str, rows: Iterable[Row]) -> Table:
    """Return rows of a summary as a table, the same for every command and for the report."""
    rows = list(rows)
    shown = {
        heading: of_row
        for heading, of_row in _COLUMNS.items()
        if heading not in _NAMES or len({of_row(row) for row in rows}) > 1
    }
    return Table.of(caption, rows, shown)


def verdict(row: Row) -> str:
    """Return what the rules say about a row, in words."""
    if row.wins:
        return "wins"
    if row.status != "ok":
        return "; ".join([row.status, *row.reasons])
    return f"not eligible: {'; '.join(row.objections)}" if row.objections else "ok"


def _part(name: str, part: str, row: Row) -> Cell:
    """Return a part of a figure that a row may lack."""
    return getattr(getattr(row, name), part, None)


_NAMES = ("target", "workload", "cache", "load", "items", "labels", "dtype")
"""Columns that are left out where they say the same in every row."""

_COLUMNS: Mapping[str, Callable[[Row], Cell]] = {
    "row": lambda row: row.name,
    "target": lambda row: row.target,
    "workload": lambda row: row.workload,
    "cache": lambda row: row.cache,
    "load": lambda row: row.load,
    "items": lambda row: row.num_items,
    "labels": lambda row: row.num_labels,
    "dtype": lambda row: row.dtype,
    "calls": lambda row: row.calls,
    "failed": lambda row: sum(row.failures.values()) or None,
    "status": verdict,
    "items/s": partial(_part, "items_per_second", "value"),
    "interval or rounds": partial(_part, "items_per_second", "spread"),
    "x reference": lambda row: f"{number(row.ratio.value)} ({row.ratio.spread})" if row.ratio else None,
    "requests/s": partial(_part, "requests_per_second", "value"),
    "of limit": lambda row: row.limit_share,
    "goodput/s": lambda row: row.goodput_rps,
    "p50 ms": partial(_part, "latency", "p50_ms"),
    "p95 ms": partial(_part, "latency", "p95_ms"),
    "p99 ms": partial(_part, "latency", "p99_ms"),
    "mean ms": partial(_part, "latency", "mean_ms"),
    "std ms": partial(_part, "latency", "std_ms"),
    "first ms": lambda row: row.first_ms,
    "steps/call": lambda row: row.steps_per_call,
    "items/USD": lambda row: row.items_per_usd,
    "max diff": lambda row: row.max_abs,
    "mean diff": lambda row: row.mean_abs,
    "compiled": lambda row: row.compilations or None,
}
