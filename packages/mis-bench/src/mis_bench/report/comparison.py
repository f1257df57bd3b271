"""Tables of a comparison: all targets in the same calls, and each in its best row."""

import math
from collections.abc import Iterator

from mis_bench.results.deltas import View, best_rows, ends, percent
from mis_bench.results.figures import Row
from mis_bench.results.rows import verdict
from mis_bench.results.statistics import Estimate
from mis_bench.results.summary import Measured
from mis_bench.table import Cell, Table

_FIGURES = (
    "items a call", "status", "items/s", "items/s delta", "items/s interval", "items/s verdict", "p50 ms",
    "latency delta", "latency interval", "latency verdict", "beside",
)  # fmt: skip


def tables(measured: Measured) -> Iterator[Table]:
    """Yield the two views of a comparison; intervals are those of its summary, or ranges of fewer than six rounds."""
    name, rows = measured.folder.name, measured.summary.rows
    by_size = sorted(rows, key=lambda row: row.chunk_items or math.inf)
    yield Table.of_cells(
        f"Portable view of {name}: all targets in the same calls",
        ["row", *_FIGURES],
        [[row.name, *_figures(measured, "portable", row)] for row in by_size],
    )
    best = best_rows(measured.results.plan, rows)
    targets = dict.fromkeys(row.target for row in rows)
    chosen = [best.get(target) or next(row for row in rows if row.target == target) for target in targets]
    yield Table.of_cells(
        f"Best native setting of every target of {name}",
        ["target", "row", "settings", *_FIGURES],
        [[row.target, row.name, _settings(measured, row), *_figures(measured, "best-native", row)] for row in chosen],
    )


def _settings(measured: Measured, row: Row) -> str:
    options = measured.results.plan.target(row.target).options
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"


def _figures(measured: Measured, view: View, row: Row) -> list[Cell]:
    """Return the cells of `_FIGURES`; those of a row that stands beside none are empty."""
    apart = next((each for each in measured.summary.deltas if (each.view, each.row) == (view, row.name)), None)
    return [
        row.chunk_items or row.num_items,
        verdict(row),
        row.items_per_second.value if row.items_per_second else None,
        *_delta(apart.items_per_second if apart else None),
        apart.speed_verdict if apart else None,
        row.latency.p50_ms if row.latency else None,
        *_delta(apart.latency if apart else None),
        apart.latency_verdict if apart else None,
        apart.reference if apart else None,
    ]


def _delta(delta: Estimate | None) -> list[Cell]:
    return [None, None] if delta is None else [percent(delta.value), ends(delta)]
