"""Percentiles of the latency of requests."""

import plotly.graph_objects as go

from mis_bench.report.lines import ROW_NAMES, Line, is_measured, lines, row_names, varying
from mis_bench.report.section import Plot, Section, Table, items, milliseconds, number, times
from mis_bench.report.sources import Sources
from mis_bench.report.style import COLOURS, SYMBOLS, figure, line_style, log_axis

MOST_LINES = 3
"""Lines in whose plot all three percentiles are drawn; of more, only p95."""


def latency(sources: Sources) -> Section | None:
    """Return the section of runs; None without an answered call."""
    found = lines(sources.runs)
    if not found:
        return None
    header = [
        *ROW_NAMES,
        "items",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "mean ms",
        "std ms",
    ]
    rows = [
        [
            *row_names(source, row),
            str(row.batch_size),
            *(number(getattr(row, f"latency_{each}_ms")) for each in ("p50", "p95", "p99", "mean", "std")),
        ]
        for source in sources.runs
        for row in source.content.rows
        if is_measured(row)
    ]
    table = Table("Latency of whole requests", *varying(header, rows, ROW_NAMES))
    plot = Plot(_figure(found), _reading(found))
    return Section("latency", "Latency", [plot], [table])


def _figure(found: list[Line]) -> go.Figure:
    traces = []
    values: list[float] = []
    for index, line in enumerate(found):
        for place, name in enumerate(("p50", "p95", "p99") if len(found) <= MOST_LINES else ("p95",)):
            heights = [getattr(row, f"latency_{name}_ms") for row in line.rows]
            values += heights
            style = line_style(index)
            if len(found) <= MOST_LINES:
                style["line"] |= {"dash": ("solid", "dash", "dot")[place], "width": 2.5 - 0.5 * place}
                style["marker"] |= {"symbol": SYMBOLS[place], "color": COLOURS[index]}
            traces.append(
                go.Scatter(
                    x=[row.batch_size for row in line.rows],
                    y=heights,
                    name=name if len(found) == 1 else f"{line.name} {name}",
                    hovertemplate="%{x} items: %{y:.4~g} ms<extra>%{fullData.name}</extra>",
                    **style,
                )
            )
    sizes = [row.batch_size for line in found for row in line.rows]
    return figure(
        traces,
        x=log_axis("Items of a request", sizes, every=True),
        y=log_axis("Latency in ms", values),
    )


def _reading(found: list[Line]) -> str:
    rows = [row for line in found for row in line.rows if row.latency_p50_ms and row.latency_p99_ms]
    worst = max(rows, key=lambda row: (row.latency_p99_ms or 0) / (row.latency_p50_ms or 1))
    ratio = (worst.latency_p99_ms or 0) / (worst.latency_p50_ms or 1)
    return (
        f"Lower is better. The distance from p50 to p99 is how much calls scatter: at most {times(ratio)}, at "
        f"{items(worst.batch_size)} ({milliseconds(worst.latency_p50_ms)} to {milliseconds(worst.latency_p99_ms)})."
    )
