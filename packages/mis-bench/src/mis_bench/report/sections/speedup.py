"""One request of many items against the same items one at a time."""

import plotly.graph_objects as go

from mis_bench.artifacts.validation import Performance
from mis_bench.report.lines import short_model
from mis_bench.report.section import Plot, Section, Table, number, times
from mis_bench.report.sources import Sources
from mis_bench.report.style import GREY, figure, line_style, log_axis


def speedup(sources: Sources) -> Section | None:
    """Return the section of validations; None if none measured speed."""
    found: dict[str, list[tuple[int, Performance]]] = {}
    for source in sources.validations:
        for model in source.content.models:
            if model.performance:
                name = f"{short_model(model.model)}, {model.about.name}"
                found[name if name not in found else f"{name}, {source.path.name}"] = sorted(model.performance.items())
    if not found:
        return None
    header = ["model and target", "items", "one request, p50 ms", "one by one, p50 ms", "speed-up"]
    rows = [
        [name, str(items), number(each.multi_p50_ms), number(each.serial_p50_ms), number(each.speedup_vs_serial_p50)]
        for name, points in found.items()
        for items, each in points
    ]
    table = Table("Speed-up over scoring items one at a time", header, rows)
    return Section("speed-up", "Speed-up over serial scoring", [Plot(_figure(found), _reading(found))], [table])


def _figure(found: dict[str, list[tuple[int, Performance]]]) -> go.Figure:
    items = [count for points in found.values() for count, _ in points]
    ratios = [each.speedup_vs_serial_p50 for points in found.values() for _, each in points]
    traces = [
        go.Scatter(
            x=[count for count, _ in points],
            y=[each.speedup_vs_serial_p50 for _, each in points],
            name=name,
            hovertemplate="%{x} items: %{y:.3~g} times<extra>%{fullData.name}</extra>",
            **line_style(index),
        )
        for index, (name, points) in enumerate(found.items())
    ]
    ends = [min(items), max(items)]
    line = {"color": GREY, "width": 1.2, "dash": "dot"}
    traces.append(go.Scatter(x=ends, y=[1, 1], mode="lines", name="serial", line=line, hoverinfo="skip"))
    return figure(
        traces,
        x=log_axis("Items of a request", items, every=True),
        y=log_axis("Times as fast as one item at a time", [1.0, *ratios]),
    )


def _reading(found: dict[str, list[tuple[int, Performance]]]) -> str:
    name, points = max(found.items(), key=lambda each: each[1][-1][1].speedup_vs_serial_p50)
    count, best = points[-1]
    return (
        f"Above the dotted line one request is faster than its items one by one: {times(best.speedup_vs_serial_p50)} "
        f"at {count} items for {name}."
    )
