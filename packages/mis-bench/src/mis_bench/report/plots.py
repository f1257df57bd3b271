"""One builder for every plot: figures over numbers or beside names, with room for every name."""

import html
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

# Okabe, Ito: Color Universal Design, 2008. The order keeps neighbours apart on light and on dark ground.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
GREY = "#8a8f98"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")  # one more: no pair comes twice in 42

LINE_PX = 19
"""Height of one line of a name, in pixels."""

_TICK_CHARACTERS, _LEGEND_CHARACTERS = 25, 46  # where names are broken into lines
_AREA_PX, _AXIS_PX = 360, 84
_MARK = {"dash": "dot", "color": GREY, "width": 1.5}


class Axis(NamedTuple):
    """An axis, of numbers or of names, the first at the top."""

    title: str  # with the unit
    kind: Literal["log", "linear", "names"] = "log"
    mark: float | None = None  # where a dotted line runs across the plot


class Series(NamedTuple):
    """What has one name in the legend: points beside names, or points of numbers with a line through them."""

    name: str
    x: Sequence[float]
    y: Sequence[Any]  # numbers or names
    ends: Sequence[tuple[float, float]] = ()  # low and high end of each interval, of `y`, or of `x` beside names
    notes: Sequence[str] = ()  # shown of each point under the pointer, beside its figures


class Plot(NamedTuple):
    """A plot and one sentence that says what to read off it, for eyes and for screen readers."""

    series: Sequence[Series]
    x: Axis
    y: Axis
    reading: str

    def draw(self) -> go.Figure:
        """Return the figure, which pages in Markdown do without."""
        return draw(self.series, self.x, self.y)


def draw(series: Sequence[Series], x: Axis, y: Axis) -> go.Figure:
    """Return a plot: lines through points, or points beside names, told apart by colour and symbol.

    The legend is a column under the plot with the height that its names need, and so have names beside the plot.
    """
    beside_names = y.kind == "names"
    xs, ys = [value for each in series for value in each.x], [value for each in series for value in each.y]
    ends = [end for each in series for pair in each.ends for end in pair]
    legend_lines = sum(len(_lines(each.name, _LEGEND_CHARACTERS)) for each in series)
    legend_px = LINE_PX * (legend_lines + 1) if len(series) > 1 else 0
    made = go.Figure([_trace(index, each, beside_names) for index, each in enumerate(series)])
    made.update_layout(
        template="none",
        colorway=COLOURS,
        height=_AREA_PX + _AXIS_PX + legend_px,
        margin={"l": 64, "r": 16, "t": 16, "b": 56 + legend_px},
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        showlegend=bool(legend_px),
        hovermode="closest",
        dragmode=False,
        xaxis=_axis(x, xs + ends if beside_names else xs),
    )
    if beside_names:
        names = list(dict.fromkeys(ys))
        labels = [_lines(name, _TICK_CHARACTERS) for name in names]
        row_px = LINE_PX * (max(map(len, labels), default=0) + 1)
        made.update_layout(height=len(names) * row_px + _AXIS_PX + legend_px)
        order = {"categoryarray": names, "range": [len(names) - 0.5, -0.5], "tickvals": names}
        made.update_yaxes(type="category", automargin=True, ticktext=list(map("<br>".join, labels)), **order)
    else:
        made.update_yaxes(_axis(y, ys + ends))
    if x.mark is not None:
        made.add_vline(x.mark, line=_MARK)
    if y.mark is not None:
        made.add_hline(y.mark, line=_MARK)
    return made


def _trace(index: int, series: Series, beside_names: bool) -> dict[str, Any]:
    values = series.x if beside_names else series.y
    return {
        "type": "scatter",
        "mode": "markers" if beside_names else "lines+markers",
        "x": list(series.x),
        "y": list(series.y),
        "name": "<br>".join(_lines(series.name, _LEGEND_CHARACTERS)),
        "text": list(series.notes) or [series.name] * len(series.x),
        "hovertemplate": f"%{{text}}<br>%{{x:.4~g}}, %{{y{'' if beside_names else ':.4~g'}}}<extra></extra>",
        "marker": {"size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)]},
        "error_x" if beside_names else "error_y": {
            "array": [high - value for value, (_, high) in zip(values, series.ends, strict=False)],
            "arrayminus": [value - low for value, (low, _) in zip(values, series.ends, strict=False)],
            "symmetric": False,
            "color": GREY,
            "thickness": 1.3,
        },
    }


def _axis(axis: Axis, values: Sequence[float]) -> dict[str, Any]:
    """Return an axis; a logarithmic one has labels at even distances, so that none lies on another."""
    made = {"title": {"text": axis.title, "standoff": 12, "font": {"size": 13}}, "automargin": True, "zeroline": False}
    made |= {"ticks": "outside", "ticklen": 4}
    if axis.kind == "log":
        low, high = min(values), max(values)
        digits = 1 if high > 30 * low else 2
        return made | {"type": "log", "tickvals": [float(f"{each:.{digits}g}") for each in np.geomspace(low, high, 5)]}
    return made | {"rangemode": "tozero"}


def _lines(name: str, width: int) -> list[str]:
    """Break a name into lines, at commas too, and within words that are longer than a line."""
    spaced = name.replace(",", ", ").replace("  ", " ")
    return [html.escape(line, quote=False) for line in textwrap.wrap(spaced, width)] or ["-"]
