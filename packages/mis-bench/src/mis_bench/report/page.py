"""A report as one HTML page that needs nothing else, not even a network."""

import datetime
import json
from collections.abc import Sequence
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

import mis_bench
from mis_bench.report.contents import Contents
from mis_bench.report.section import Section


def as_html(report: Contents) -> str:
    """Return the page: text, tables, plots and the program that draws them."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mis_bench.report"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    has_plots = any(section.plots for section in report.sections)
    return environment.get_template("report.html.j2").render(
        report=report,
        figures=_figures(report.sections),
        plotly=get_plotlyjs() if has_plots else "",
        version=mis_bench.__version__,
        made=datetime.datetime.now(datetime.UTC),
    )


def _figures(sections: Sequence[Section]) -> str:
    """Return all figures as one JSON object by the identifiers of their elements, safe inside a script element."""
    figures: dict[str, Any] = {
        f"{section.identifier}-plot-{place}": json.loads(plot.figure.to_json() or "{}")
        for section in sections
        for place, plot in enumerate(section.plots)
    }
    return json.dumps(figures).replace("<", "\\u003c")
