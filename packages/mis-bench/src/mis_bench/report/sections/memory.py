"""Memory on the devices: measured by profiles, and what estimates need of what there is."""

import plotly.graph_objects as go

from mis_bench.report.section import Plot, Section, Table, number
from mis_bench.report.sources import Sources
from mis_bench.report.style import BLUE, SKY, bar_height, figure, names_axis

GIBIBYTE = 2**30


def memory(sources: Sources) -> Section | None:
    """Return the section; None if nothing tells memory."""
    tensors: list[tuple[str, str, float]] = []
    totals: list[tuple[str, float, float | None]] = []
    for source in sources.profiles:
        for report in source.content.memory:
            what = f"{source.content.target.name}, {report.stage}"
            devices = source.content.metadata.hardware.device_count
            totals.append((what, report.total_memory_mb / devices / 1024, None))
            tensors += [(what, name, tensor.memory_mb / 1024) for name, tensor in report.tensors.items()]
    for source in sources.estimates:
        each = source.content
        limit = each.memory_limit_bytes / GIBIBYTE
        totals.append((f"{each.model} on {each.topology}, estimated", each.memory_bytes / GIBIBYTE, limit))
    if not totals:
        return None
    rows = [
        [what, number(used), number(limit), "-" if limit is None else f"{used / limit:.0%}"]
        for what, used, limit in totals
    ]
    tables = [Table("Memory of a device", ["what", "used GiB", "there is GiB", "share"], rows)]
    if tensors:
        largest = sorted(tensors, key=lambda each: -each[2])[:20]
        tables.append(
            Table(
                "Largest arrays that stay",
                ["when", "array", "GiB on all devices"],
                [[*each[:2], number(each[2])] for each in largest],
            )
        )
    return Section("memory", "Memory", [Plot(_figure(totals), _reading(totals))], tables)


def _figure(totals: list[tuple[str, float, float | None]]) -> go.Figure:
    names = [what for what, _, _ in totals]
    used = go.Bar(
        y=names,
        x=[used for _, used, _ in totals],
        orientation="h",
        name="used",
        marker={"color": BLUE},
        hovertemplate="%{y}: %{x:.3~g} GiB<extra></extra>",
    )
    limited = [(what, limit) for what, _, limit in totals if limit is not None]
    traces: list = [used]
    if limited:
        traces.append(
            go.Scatter(
                y=[what for what, _ in limited],
                x=[limit for _, limit in limited],
                mode="markers",
                name="what there is",
                marker={"symbol": "line-ns", "size": 26, "line": {"width": 4, "color": SKY}},
                hovertemplate="%{y}: %{x:.3~g} GiB<extra>what there is</extra>",
            )
        )
    return figure(
        traces,
        x={"title": "Memory of a device in GiB", "rangemode": "tozero"},
        y=names_axis(names),
        height=bar_height(len(names)),
        bargap=0.45,
    )


def _reading(totals: list[tuple[str, float, float | None]]) -> str:
    what, used, limit = max(totals, key=lambda each: each[1] / (each[2] or float("inf")))
    if limit is None:
        what, used, _ = max(totals, key=lambda each: each[1])
        return f"Most is needed by {what}: {number(used)} GiB of arrays that stay."
    return (
        f"What is left between bar and mark is room for a larger cache: {what} needs {used / limit:.0%} of its memory."
    )
