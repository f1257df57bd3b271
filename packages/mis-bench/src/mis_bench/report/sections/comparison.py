"""Comparisons: bars that say who counts and who wins."""

from typing import Any

import plotly.graph_objects as go

from mis_bench.artifacts.comparison import Comparison, Row, View
from mis_bench.comparison.markdown import verdict, views
from mis_bench.report.section import Plot, Section, Table, number
from mis_bench.report.sources import Sources, distinct
from mis_bench.report.style import BLUE, GREEN, GREY, SKY, bar_height, figure, line_style, log_axis, names_axis


def comparisons(sources: Sources) -> list[Section]:
    """Return a section for each comparison."""
    return [_section(source.content, f"comparison-{place}") for place, source in enumerate(sources.comparisons)]


def _section(found: Comparison, identifier: str) -> Section:
    plots = []
    drawn = [row for row in found.best_native_view.rows if row.items_per_second]
    if drawn:
        plots.append(Plot(_bars(found.best_native_view, drawn), _bars_reading(found)))
    chunked = [row for row in found.portable_view.rows if row.items_per_second]
    if len({row.chunk_items for row in chunked}) > 2:
        plots.append(
            Plot(
                _chunks(chunked),
                "The same calls for all targets: where a line flattens, larger calls bring no more items per second.",
            )
        )
    tables = [_view(title, view, found.reference) for title, view in views(found)]
    tables.append(_correctness(found))
    absent = [[each.name, each.unavailable] for each in found.targets if each.unavailable]
    if absent:
        tables.append(Table("Could not run", ["target", "why"], absent))
    title = f"Comparison on {found.workload.name}"
    return Section(identifier, title, plots, tables, [*found.recommendations, *found.findings, *found.notes])


def _bars(view: View, drawn: list[Row]) -> go.Figure:
    classes = {
        "wins": (GREEN, "", [row for row in drawn if row is view.best]),
        "within the guardrail": (BLUE, "", [row for row in drawn if row.within_guardrail and row is not view.best]),
        "p95 above the guardrail": (SKY, "", [row for row in drawn if row.within_guardrail is False]),
        "not eligible": (GREY, "/", [row for row in drawn if not row.eligible]),
    }
    traces: list[Any] = [
        go.Bar(
            y=[row.label for row in rows],
            x=[_speed(row) for row in rows],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [row.items_per_second.high - _speed(row) if row.items_per_second else 0 for row in rows],
                "arrayminus": [_speed(row) - row.items_per_second.low if row.items_per_second else 0 for row in rows],
                "color": GREY,
                "thickness": 1.5,
                "width": 4,
            },
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": {"shape": shape, "size": 6, "solidity": 0.3}},
            hovertemplate="%{y}: %{x:.4~g} items/s<extra>" + name + "</extra>",
        )
        for name, (colour, shape, rows) in classes.items()
        if rows
    ]
    ends = [row.items_per_second.high if row.items_per_second else 0.0 for row in drawn]
    traces.append(
        go.Scatter(
            y=[row.label for row in drawn],
            x=ends,
            text=[f"  {number(_speed(row))}" for row in drawn],
            mode="text",
            textposition="middle right",
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
        )
    )
    if _is_wide(drawn):
        axis = log_axis("Items per second, logarithmic", [_least(drawn) / 2, max(ends) * 2.5])
    else:
        axis = {"title": "Items per second", "range": [0, 1.2 * max(ends)]}
    names = [row.label for row in drawn]
    return figure(
        traces,
        x=axis,
        y=names_axis(names) | {"categoryorder": "array", "categoryarray": names},
        height=bar_height(len(names)),
        bargap=0.4,
        barmode="overlay",
        showlegend=True,
    )


def _is_wide(drawn: list[Row]) -> bool:
    """Whether the slowest bar would hardly be seen beside the fastest."""
    return max(_speed(row) for row in drawn) > 20 * _least(drawn)


def _least(drawn: list[Row]) -> float:
    return min(row.items_per_second.low for row in drawn if row.items_per_second)


def _speed(row: Row) -> float:
    return row.items_per_second.value if row.items_per_second else 0.0


def _bars_reading(found: Comparison) -> str:
    return (
        f"Longer is faster. The green bar wins: most items per second with a p95 of at most "
        f"{found.limits.guardrail_ratio:g} times the lowest. Hatched bars do not count; the table says why."
    )


def _chunks(rows: list[Row]) -> go.Figure:
    names = distinct(", ".join(filter(None, (row.target, row.setting))) for row in rows)
    traces = []
    for index, name in enumerate(names):
        mine = sorted(
            (row for row in rows if ", ".join(filter(None, (row.target, row.setting))) == name),
            key=lambda row: row.chunk_items,
        )
        traces.append(
            go.Scatter(
                x=[row.chunk_items for row in mine],
                y=[_speed(row) for row in mine],
                name=name,
                hovertemplate="calls of %{x} items: %{y:.4~g} items/s<extra>%{fullData.name}</extra>",
                **line_style(index),
            )
        )
    return figure(
        traces,
        x=log_axis("Items of a call", [row.chunk_items for row in rows], every=True),
        y=log_axis("Items per second", [_speed(row) for row in rows]),
    )


def _view(title: str, view: View, reference: str) -> Table:
    header = ["target", "items/s", "spread", f"x {reference}", "p50 ms", "p95 ms", "success", "items per USD"]
    rows = [_cells(row, row is view.best) for row in view.rows]
    if not any(row.items_per_usd for row in view.rows):
        header, rows = header[:-1], [[*row[:-2], row[-1]] for row in rows]
    return Table(title, [*header, "verdict"], rows)


def _cells(row: Row, wins: bool) -> list[str]:
    speed, latency = row.items_per_second, row.latency
    return [
        row.label,
        number(speed.value if speed else None),
        f"{number(speed.low)} to {number(speed.high)} ({speed.kind})" if speed else "-",
        number(row.ratio.value if row.ratio else None),
        number(latency.p50_ms if latency else None),
        number(latency.p95_ms if latency else None),
        f"{row.success_rate:.0%}",
        number(row.items_per_usd),
        verdict(row, wins).replace("**", ""),
    ]


def _correctness(found: Comparison) -> Table:
    limits = found.limits
    return Table(
        f"Differences of label softmaxes from {found.reference}: at most {limits.max_abs:g}, "
        f"on average {limits.mean_abs:g}",
        ["target", "status", "items", "largest", "mean", "gate"],
        [
            [
                each.target,
                each.status,
                str(each.items),
                number(each.max_abs),
                number(each.mean_abs),
                "passed" if each.passed else "failed",
            ]
            for each in found.correctness
        ],
    )
