"""Plots: lines and bars, described by their data; colours that colour-blind people tell apart, room for every name."""

import html
import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

# Okabe, Ito: Color Universal Design, 2008. The order keeps neighbours apart on light and on dark ground.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
GREY = "#8a8f98"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot")
PATTERNS = ("", "/", ".", "x", "-", "+")

LINE_PX = 19
"""Height of one line of a name, in pixels."""

_TICK_CHARACTERS, _LEGEND_CHARACTERS = 25, 46  # where names are broken into lines
_AREA_PX, _AXIS_PX, _BAR_PX = 360, 84, 40
_MOST_DECADES = 2.6  # with three labels in each


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot and one sentence that says what to read off it, for eyes and for screen readers."""

    figure: go.Figure
    reading: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of numbers.

    Attributes:
        title: With the unit.
        is_log: Logarithmic.
    """

    title: str
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class Series:
    """What has one name in the legend: a line of a line plot, or one kind of bars.

    Attributes:
        name: In the legend.
        x: Positions of a line's points, or names of bars.
        y: Heights of a line's points, or lengths of bars.
        ends: Of the interval of each `y`, low and high; None draws none.
        notes: What to show of a point under the pointer, beside its figures.
        style: `line`, `points`, or `guide`: a grey line for the eye.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    ends: Sequence[tuple[float, float]] | None = None
    notes: Sequence[str] = ()
    style: Literal["line", "points", "guide"] = "line"


def lines(series: Sequence[Series], x: Axis, y: Axis) -> go.Figure:
    """Return a plot of lines and points, told apart by colour, symbol and dash."""
    traces = [
        {
            "type": "scatter",
            "x": list(each.x),
            "y": list(each.y),
            "name": _broken(each.name, _LEGEND_CHARACTERS),
            "text": list(each.notes) or [each.name] * len(each.x),
            "hovertemplate": "%{text}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
            **_line_style(index, each.style),
            **({"error_y": _error_bars(each)} if each.ends else {}),
        }
        for index, each in enumerate(series)
    ]
    xs = [float(value) for each in series for value in each.x]
    ys = [value for each in series for value in (*each.y, *(end for ends in each.ends or () for end in ends))]
    return _figure(traces, _AREA_PX, xaxis=_axis(x, xs), yaxis=_axis(y, ys))


def bars(series: Sequence[Series], axis: Axis, *, stacked: bool = False) -> go.Figure:
    """Return a plot of horizontal bars, the first name at the top.

    Args:
        series: Kinds of bars; each name is in one of them, or if they are stacked in all.
        axis: Of lengths. A logarithmic one is taken only where the shortest bar would hardly be seen beside the
            longest.
        stacked: One behind another, up to 100 %.
    """
    names = list(dict.fromkeys(str(name) for each in series for name in each.x))
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": list(each.y),
            "y": list(each.x),
            "name": _broken(each.name, _LEGEND_CHARACTERS),
            "marker": {
                "color": COLOURS[index % len(COLOURS)],
                "pattern": {"shape": PATTERNS[index // len(COLOURS) % len(PATTERNS)], "size": 6, "solidity": 0.35},
            },
            "customdata": list(each.notes) or [each.name] * len(each.x),
            "hovertemplate": "%{y}: %{x:.4~g}<br>%{customdata}<extra></extra>",
            **({"error_x": _error_bars(each)} if each.ends else {}),
        }
        for index, each in enumerate(series)
    ]
    lengths = [value for each in series for value in each.y]
    far = [value for each in series for ends in each.ends or () for value in ends]
    least, most = min([*lengths, *far]), max([*lengths, *far])
    if stacked:
        drawn: dict[str, Any] = {"title": axis.title, "range": [0, 100]}
    elif axis.is_log and least > 0 and most > 20 * least:
        drawn = _axis(Axis(f"{axis.title}, logarithmic"), [least / 2, most * 1.5])
    else:
        drawn = {"title": axis.title, "range": [1.1 * min(least, 0), 1.1 * max(most, 0)], "zeroline": least < 0}
    labels = [_broken(name, _TICK_CHARACTERS) for name in names]
    tallest = max(label.count("<br>") + 1 for label in labels)
    return _figure(
        traces,
        len(names) * max(_BAR_PX, LINE_PX * (tallest + 1)),
        xaxis=drawn,
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "range": [len(names) - 0.5, -0.5],
            "showgrid": False,
            "tickvals": names,
            "ticktext": labels,
        },
        barmode="stack" if stacked else "overlay",
        bargap=0.35,
    )


def _figure(traces: list[dict[str, Any]], area_px: int, **layout: Any) -> go.Figure:
    """Return a figure; names stand in a column under it, which has the height that they need."""
    named = sum(trace["name"].count("<br>") + 1 for trace in traces) if len(traces) > 1 else 0
    legend_px = LINE_PX * (named + 1) if named else 0
    for axis in ("xaxis", "yaxis"):
        title = layout[axis].get("title")
        layout[axis] = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4} | layout[axis]
        if title:
            layout[axis]["title"] = {"text": title, "standoff": 12, "font": {"size": 13}}
    made = go.Figure(traces)
    made.update_layout(
        template="none",
        height=area_px + _AXIS_PX + legend_px,
        margin={"l": 64, "r": 16, "t": 16, "b": 56 + legend_px},
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        showlegend=bool(named),
        hovermode="closest",
        dragmode=False,
        **layout,
    )
    return made


def _line_style(index: int, style: str) -> dict[str, Any]:
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
    if style == "guide":
        return {"mode": "lines", "line": {"color": GREY, "width": 1.5, "dash": DASHES[(index + 2) % len(DASHES)]}}
    return {
        "mode": "lines+markers" if style == "line" else "markers",
        "line": {"color": colour, "width": 2.5, "dash": dash},
        "marker": {"color": colour, "size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)]},
    }


def _error_bars(series: Series) -> dict[str, Any]:
    pairs = list(zip(series.y, series.ends or (), strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, (_, high) in pairs],
        "arrayminus": [value - low for value, (low, _) in pairs],
        "color": GREY,
        "thickness": 1.3,
        "width": 4,
    }


def _axis(axis: Axis, values: Sequence[float]) -> dict[str, Any]:
    """Return an axis; a logarithmic one labels the values themselves if they are few, else 1, 2 and 5 of a decade."""
    positive = sorted({value for value in values if value > 0})
    if not axis.is_log or not positive:
        return {"title": axis.title, "rangemode": "tozero"}
    low, high = math.log10(positive[0]), math.log10(positive[-1])
    margin = 0.06 * max(high - low, 0.5)
    steps: dict[str, Any] = {"dtick": "D2" if high - low < _MOST_DECADES else 1, "exponentformat": "SI"}
    if all(value == round(value) for value in positive) and _are_apart(positive):
        steps = {"tickvals": positive}
    return {"title": axis.title, "type": "log", "range": [low - margin, high + margin], **steps}


def _are_apart(values: Sequence[float]) -> bool:
    """Whether labels of all values have room beside each other."""
    least = 0.05 * math.log10(values[-1] / values[0])
    return len(values) < 12 and all(math.log10(b / a) >= least for a, b in itertools.pairwise(values))


def _broken(name: str, width: int) -> str:
    """Return a name broken into lines, at commas and slashes too, and within words that are longer than a line."""
    spaced = name.replace(",", ", ").replace("  ", " ")
    return "<br>".join(html.escape(line, quote=False) for line in textwrap.wrap(spaced, width)) or "-"
