"""How plots look: colours that colour-blind people tell apart, axes with units, room for labels."""

import math
import re
import textwrap
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import plotly.graph_objects as go

# Okabe, Ito: Color Universal Design, 2008. The order keeps neighbours apart on light and on dark ground.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)
GREY = "#8a8f98"
_STEPS = ((0.6, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), (1.2, (1, 1.5, 2, 3, 5, 7)), (2.6, (1, 2, 5)))
"""Labels of each decade of an axis of fewer decades than the first number."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot")
PATTERNS = ("", "/", ".", "x", "-", "+")


def colours(count: int) -> list[str]:
    """Return so many colours; they repeat after six."""
    return list(islice(cycle(COLOURS), count))


def line_style(index: int) -> dict[str, Any]:
    """Return colour, symbol and dash of a line; the three together tell lines apart without colour."""
    colour = COLOURS[index % len(COLOURS)]
    return {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2.5, "dash": DASHES[index // len(COLOURS) % len(DASHES)]},
        "marker": {"color": colour, "size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)]},
    }


def figure(
    traces: Sequence[Any], *, x: dict[str, Any], y: dict[str, Any], height: int = 420, **layout: Any
) -> go.Figure:
    """Return a figure of traces.

    Args:
        traces: Plotly's.
        x: Settings of the horizontal axis, `title` with its unit among them.
        y: Of the vertical one.
        height: In pixels; the width is the page's.
        layout: Other settings.
    """
    made = go.Figure(list(traces))
    made.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": 16, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0, "traceorder": "normal"},
        showlegend=len(traces) > 1,
        hovermode="closest",
        dragmode=False,
        xaxis=_axis(x),
        yaxis=_axis(y),
    )
    made.update_layout(**layout)
    return made


def log_axis(title: str, values: Sequence[float], *, every: bool = False) -> dict[str, Any]:
    """Return a logarithmic axis.

    Args:
        title: With the unit.
        values: What is drawn.
        every: Label the values themselves instead of 1, 2 and 5 of each decade.
    """
    positive = sorted({value for value in values if value > 0})
    axis: dict[str, Any] = {"title": title, "type": "log"}
    if not positive:
        return axis
    low, high = math.log10(positive[0]), math.log10(positive[-1])
    margin = 0.06 * max(high - low, 0.5)
    axis["range"] = [low - margin, high + margin]
    marks = _apart(positive) if every else _decades(low - margin, high + margin)
    axis |= {"tickmode": "array", "tickvals": marks, "ticktext": [_short(mark) for mark in marks]}
    return axis


def names_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Return an axis of names for horizontal bars, the first at the top, long names broken into lines."""
    return {
        "range": [len(labels) - 0.5, -0.5],
        "showgrid": False,
        "automargin": True,
        "tickvals": list(labels),
        "ticktext": [wrapped(x) for x in labels],
    }


def wrapped(text: str, width: int = 25) -> str:
    """Break a name into lines for a label."""
    return "<br>".join(textwrap.wrap(re.sub(r",(?! )", ", ", text), width, break_on_hyphens=True))


def bar_height(count: int) -> int:
    """Return the height of a plot of so many horizontal bars, in pixels."""
    return 110 + 46 * max(count, 2)


def _axis(settings: dict[str, Any]) -> dict[str, Any]:
    title = settings.get("title")
    return (
        {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
        | settings
        | ({"title": {"text": title, "standoff": 12, "font": {"size": 13}}} if title else {})
    )


def _decades(low: float, high: float) -> list[float]:

    steps = next((steps for span, steps in _STEPS if high - low < span), (1.0,))
    exponents = range(math.floor(low), math.ceil(high) + 1)
    marks = [step * 10.0**exponent for exponent in exponents for step in steps]
    return [mark for mark in marks if low <= math.log10(mark) <= high]


def _apart(values: Sequence[float]) -> list[float]:
    """Return values that are far enough apart to be labelled, the last always among them."""
    least = 0.045 * max(math.log10(values[-1] / values[0]), 0.1)
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if math.log10(kept[-1] / value) >= least:
            kept.append(value)
    return kept[::-1]


def _short(value: float) -> str:
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if suffix == 'k' else size):g}{suffix}"
    return f"{value:g}"
