"""A report, and how it becomes one HTML page that needs nothing else, not even a network, or Markdown."""

import datetime
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jinja2
from plotly.offline import get_plotlyjs

import mis_bench
from mis_bench.report.plots import Plot
from mis_bench.table import Table, escaped, is_bad


class Section(NamedTuple):
    """A part of the page."""

    title: str
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()  # the same figures, exactly
    text: Sequence[str] = ()


def as_html(title: str, sections: Iterable[Section]) -> str:
    """Return the page: heading, text, tables, plots and the program that draws them."""
    sections = _filled(sections)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mis_bench.report"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = {
        f"section-{index}-plot-{number}": json.loads(plot.draw().to_json() or "{}")
        for index, section in enumerate(sections, 1)
        for number, plot in enumerate(section.plots, 1)
    }
    return environment.get_template("report.html.j2").render(
        title=title,
        sections=sections,
        is_bad=is_bad,
        heights={name: figure["layout"]["height"] for name, figure in figures.items()},
        figures=json.dumps(figures).replace("<", "\\u003c"),  # nothing in it ends a script element
        plotly=get_plotlyjs() if figures else "",
        version=mis_bench.__version__,
        made=datetime.datetime.now(datetime.UTC),
    )


def as_markdown(title: str, sections: Iterable[Section]) -> str:
    """Return everything but the plots: headings, what to read off each plot, text and tables; no name is markup."""
    lines = [f"# {escaped(title)}"]
    for section in _filled(sections):
        lines += ["", f"## {escaped(section.title)}"]
        for plot in section.plots:
            lines += ["", escaped(plot.reading)]
        if section.text:
            lines += ["", *(f"- {escaped(line)}" for line in section.text)]
        for table in section.tables:
            lines += ["", table.as_markdown()]
    return "\n".join([*lines, ""])


def _filled(sections: Iterable[Section]) -> list[Section]:
    """Return the sections without tables that have no rows, if there is anything else in them."""
    kept = (each._replace(tables=[table for table in each.tables if table.rows]) for each in sections)
    return [each for each in kept if each.plots or each.tables or each.text]
