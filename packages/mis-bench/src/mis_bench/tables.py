"""The table of rows: one set of columns for every command and for the report; those that no row fills are left out."""

from collections.abc import Callable, Iterable, Mapping

from mis_bench.figures import Row
from mis_bench.statistics import Estimate, Latency
from mis_bench.table import Cell, Table, number

NAMES = ("target", "workload", "cache", "load", "items", "labels", "dtype")
"""Columns that are left out where they say the same in every row."""


def _latency(of: Callable[[Latency], float]) -> Callable[[Row], Cell]:
    return lambda row: None if row.latency is None else of(row.latency)


def _value(found: Estimate | None) -> float | None:
    return None if found is None else found.value


COLUMNS: Mapping[str, Callable[[Row], Cell]] = {
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
    "status": lambda row: verdict(row),
    "items/s": lambda row: _value(row.items_per_second),
    "interval or rounds": lambda row: row.items_per_second.spread if row.items_per_second else None,
    "x reference": lambda row: f"{number(row.ratio.value)} ({row.ratio.spread})" if row.ratio else None,
    "requests/s": lambda row: _value(row.requests_per_second),
    "goodput/s": lambda row: row.goodput_rps,
    "p50 ms": _latency(lambda latency: latency.p50_ms),
    "p95 ms": _latency(lambda latency: latency.p95_ms),
    "p99 ms": _latency(lambda latency: latency.p99_ms),
    "mean ms": _latency(lambda latency: latency.mean_ms),
    "std ms": _latency(lambda latency: latency.std_ms),
    "first ms": lambda row: row.first_ms,
    "steps/call": lambda row: row.steps_per_call,
    "items/USD": lambda row: row.items_per_usd,
    "max diff": lambda row: row.max_abs,
    "mean diff": lambda row: row.mean_abs,
    "compiled": lambda row: row.compilations or None,
}


def rows_table(caption: str, rows: Iterable[Row]) -> Table:
    """Return rows as a table."""
    return Table.of(caption, rows, COLUMNS).without_constant(*NAMES)


def verdict(row: Row) -> str:
    """Return what the rules say about a row, in words."""
    if row.wins:
        return "wins"
    if row.status != "ok":
        return "; ".join([row.status, *row.reasons])
    return f"not eligible: {'; '.join(row.objections)}" if row.objections else "ok"
