"""Items per second by the number of items of a request."""

import plotly.graph_objects as go

from mis_bench.artifacts.run import RunRow
from mis_bench.report.lines import ROW_NAMES, Line, lines, row_names, varying
from mis_bench.report.section import Plot, Section, Table, number, times
from mis_bench.report.sources import Sources
from mis_bench.report.style import figure, line_style, log_axis


def throughput(sources: Sources) -> Section | None:
    """Return the section of runs; None without any."""
    if not sources.runs:
        return None
    found = lines(sources.runs)
    header = [
        *ROW_NAMES,
        "items",
        "items/s",
        "spread",
        "requests/s",
        "status",
    ]
    rows = [
        [
            *row_names(source, row),
            str(row.batch_size),
            number(row.throughput_ips),
            f"{number(row.throughput_interval.low)} to {number(row.throughput_interval.high)} "
            f"({row.throughput_interval.kind})"
            if row.throughput_interval
            else "-",
            number(row.throughput_rps),
            row.status if row.reason is None else f"{row.status}: {row.reason}",
        ]
        for source in sources.runs
        for row in source.content.rows
    ]
    tables = [Table("Throughput of every row of the runs", *varying(header, rows, ROW_NAMES))]
    plots = [Plot(_figure(found), _reading(found))] if found else []
    return Section("throughput", "Throughput", plots, tables)


def _figure(found: list[Line]) -> go.Figure:
    rows = [row for line in found for row in line.rows]
    traces = [
        go.Scatter(
            x=[row.batch_size for row in line.rows],
            y=[row.throughput_ips for row in line.rows],
            error_y=_errors(line),
            name=line.name,
            hovertemplate="%{x} items: %{y:.4~g} items/s<extra>%{fullData.name}</extra>",
            **line_style(index),
        )
        for index, line in enumerate(found)
    ]
    return figure(
        traces,
        x=log_axis("Items of a request", [row.batch_size for row in rows], every=True),
        y=log_axis("Items per second", [end for row in rows for end in _ends(row)]),
    )


def _ends(row: RunRow) -> tuple[float, float]:
    """Return the ends of the interval, or the figure twice where there is none."""
    interval = row.throughput_interval
    return (interval.low, interval.high) if interval else (row.throughput_ips, row.throughput_ips)


def _errors(line: Line) -> dict | None:
    intervals = [row.throughput_interval for row in line.rows]
    if any(each is None for each in intervals):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.value for each in intervals if each],
        "arrayminus": [each.value - each.low for each in intervals if each],
        "thickness": 1.2,
        "width": 3,
    }


def _reading(found: list[Line]) -> str:
    line = max(found, key=lambda each: each.rows[-1].throughput_ips)
    first, last = line.rows[0], line.rows[-1]
    best = f"The best line reaches {number(last.throughput_ips)} items/s at {last.batch_size} items"
    if first.batch_size == last.batch_size:
        return f"{best}. Higher is better; bars are the spread that the table has."
    gain = times(last.throughput_ips / first.throughput_ips)
    return (
        f"{best}, {gain} its speed at {first.batch_size}: a line that rises spreads the query's cost over more items, "
        "a flat one is limited by the items themselves. Bars are the spread that the table has."
    )
