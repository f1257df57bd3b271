"""Matrices: items per second by chunk size."""

from collections.abc import Sequence

import plotly.graph_objects as go

from mis_bench.artifacts.matrix import ScoreMatrix
from mis_bench.artifacts.matrix_row import MatrixRow
from mis_bench.report.section import Plot, Section, Table, number
from mis_bench.report.sources import Source, Sources, distinct
from mis_bench.report.style import figure, line_style, log_axis


def matrix(sources: Sources) -> Section | None:
    """Return the section of all matrices; None without any."""
    if not sources.matrices:
        return None
    plots = []
    for view, title in (("portable", "call"), ("best_native", "chunk of the server's")):
        those = [source for source in sources.matrices if source.content.evaluation_view == view]
        lines = _lines(those)
        if any(len(rows) > 1 for rows in lines.values()):
            plots.append(Plot(_figure(lines, title), _reading(those, title)))
    header = ["target", "view", "configuration", "items/s", "p50 ms", "p95 ms", "first run x", "success", "status"]
    rows = [
        [
            source.content.target.name,
            source.content.evaluation_view,
            row.configuration.name,
            number(row.throughput_items_sec),
            number(row.p50_total_e2e_ms),
            number(row.p95_total_e2e_ms),
            number(row.first_run_penalty_ratio),
            f"{row.success_rate:.0%}",
            _status(source.content, row),
        ]
        for source in sources.matrices
        for row in source.content.results
    ]
    return Section("matrix", "Chunk sizes", plots, [Table("Sweeps", header, rows)])


def _lines(those: Sequence[Source[ScoreMatrix]]) -> dict[str, list[MatrixRow]]:
    lines: dict[str, list[MatrixRow]] = {}
    for source in those:
        for row in source.content.results:
            if row.throughput_items_sec and row.configuration.chunk_size:
                layout = [
                    each
                    for each in (row.configuration.scoring_algorithm, row.configuration.mask_impl)
                    if each != "auto"
                ]
                run = (
                    [source.content.run_id]
                    if len(distinct(each.content.target.name for each in those)) < len(those)
                    else []
                )
                lines.setdefault(", ".join([source.content.target.name, *layout, *run]), []).append(row)
    return lines


def _figure(lines: dict[str, list[MatrixRow]], title: str) -> go.Figure:
    rows = [row for those in lines.values() for row in those]
    traces = []
    for index, (name, those) in enumerate(lines.items()):
        rising = sorted(those, key=lambda row: row.configuration.chunk_size)
        traces.append(
            go.Scatter(
                x=[row.configuration.chunk_size for row in rising],
                y=[row.throughput_items_sec for row in rising],
                name=name,
                hovertemplate="%{x} items: %{y:.4~g} items/s<extra>%{fullData.name}</extra>",
                **line_style(index),
            )
        )
    return figure(
        traces,
        x=log_axis(f"Items of a {title}", [row.configuration.chunk_size for row in rows], every=True),
        y=log_axis("Items per second", [row.throughput_items_sec or 0 for row in rows]),
    )


def _reading(those: Sequence[Source[ScoreMatrix]], title: str) -> str:
    best = [
        f"{source.content.target.name} at {source.content.summary.best_chunk_size or 'sizes of its own choice'}"
        for source in those
        if source.content.summary.best_throughput is not None
    ]
    advice = f" Recommended: {', '.join(best)}." if best else " No row may win."
    return f"Where a line flattens, a larger {title} brings no more items per second.{advice}"


def _status(found: ScoreMatrix, row: MatrixRow) -> str:
    why = found.summary.ineligible.get(row.configuration.name)
    wins = found.summary.recommendation == row.configuration
    return "recommended" if wins else row.status if why is None else f"not eligible: {why}"
