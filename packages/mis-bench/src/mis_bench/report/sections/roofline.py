"""Arithmetic intensity against performance, under the roofs of the devices."""

import math
from collections.abc import Mapping

import plotly.graph_objects as go

from mis_bench.report.rooflines import Point, Roof, points
from mis_bench.report.section import Plot, Section, Table, number
from mis_bench.report.sources import Sources, distinct
from mis_bench.report.style import COLOURS, DASHES, GREY, SYMBOLS, figure, log_axis

TERA = 1e12


def roofline(sources: Sources, roofs: Mapping[str, Roof]) -> Section | None:
    """Return the section; None if there is no point.

    Args:
        sources: Artifacts and estimates.
        roofs: Of the hardware of runs, by name.
    """
    found = points(sources, roofs)
    if not found:
        return None
    rows = [
        [
            each.name,
            "estimated" if each.estimated else "measured",
            number(each.intensity),
            number(each.flops / TERA),
            "-" if each.roof is None else number(each.roof.at(each.intensity) / TERA),
            "-" if each.roof is None else f"{each.flops / each.roof.at(each.intensity):.1%}",
        ]
        for each in found
    ]
    header = ["what", "how known", "FLOP per byte", "TFLOP/s", "roof TFLOP/s", "share of the roof"]
    text = [
        "Operations are the fewest that a request needs, with its query computed once; bytes are the layers' weights, "
        "read once a request. Both are for one device."
    ]
    plot = Plot(_figure(found), _reading(found))
    return Section("roofline", "Roofline", [plot], [Table("Distance from the roof", header, rows)], text)


def _figure(found: list[Point]) -> go.Figure:
    roofs = {each.roof.name: each.roof for each in found if each.roof is not None}
    ridges = [roof.flops / roof.bytes for roof in roofs.values()]
    xs = [*(each.intensity for each in found), *ridges]
    low, high = min(xs) / 3, max(xs) * 3
    traces = [
        go.Scatter(
            x=[low, roof.flops / roof.bytes, high],
            y=[roof.at(low) / TERA, roof.flops / TERA, roof.flops / TERA],
            mode="lines",
            name=f"roof of {name}",
            line={"color": GREY, "width": 2, "dash": DASHES[index % len(DASHES)]},
            hoverinfo="skip",
        )
        for index, (name, roof) in enumerate(roofs.items())
    ]
    names = distinct(_group(each) for each in found)
    for index, name in enumerate(names):
        mine = [each for each in found if _group(each) == name]
        traces.append(
            go.Scatter(
                x=[each.intensity for each in mine],
                y=[each.flops / TERA for each in mine],
                mode="markers",
                name=name,
                text=[each.name for each in mine],
                marker={
                    "size": 13,
                    "color": COLOURS[index % len(COLOURS)],
                    "symbol": SYMBOLS[index % len(SYMBOLS)] + ("-open" if mine[0].estimated else ""),
                    "line": {"width": 2.5 if mine[0].estimated else 0, "color": COLOURS[index % len(COLOURS)]},
                },
                hovertemplate="%{text}<br>%{x:.3~s} FLOP/byte, %{y:.3~g} TFLOP/s<extra></extra>",
            )
        )
    ys = [each.flops / TERA for each in found] + [roof.flops / TERA for roof in roofs.values()]
    return figure(
        traces,
        x=log_axis("Intensity in FLOP per byte", [low, high]),
        y=log_axis("TFLOP/s of a device", ys),
        height=460,
    )


def _group(point: Point) -> str:
    """Name estimates one by one, runs by their target."""
    return point.name if point.estimated else f"{point.name.partition(',')[0]}, measured"


def _reading(found: list[Point]) -> str:
    known = [each for each in found if each.roof is not None]
    if not known:
        return "Higher is more arithmetic a second; no peak is known for this hardware, so no roof is drawn."
    best = max(known, key=lambda each: each.flops / each.roof.at(each.intensity) if each.roof else -math.inf)
    roof = best.roof.at(best.intensity) if best.roof else math.inf
    side = "arithmetic" if best.roof and best.roof.flops <= best.intensity * best.roof.bytes else "memory"
    return (
        f"A point on its line could not be faster: {best.name} is closest, at {best.flops / roof:.0%} of what its "
        f"{side} allows. Points under the flat part are limited by arithmetic, under the slope by memory."
    )
