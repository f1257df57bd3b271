"""A report, and how it becomes one HTML page that needs nothing else, not even a network, or Markdown."""

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jinja2
from plotly.offline import get_plotlyjs

import mis_bench
from mis_bench.report.plots import Plot
from mis_bench.table import Table, is_bad


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure of the top of the page: `65.8`, `items/s`, and what it is."""

    figure: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        plots: Plots with something in them.
        tables: The same figures, exactly.
        text: What else there is to say.
    """

    title: str
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    text: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All that a page says.

    Attributes:
        title: What was measured.
        subtitle: Models and hardware.
        headlines: A few figures.
        sections: In the order of the page.
    """

    title: str
    subtitle: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]


def as_html(report: Report) -> str:
    """Return the page: text, tables, plots and the program that draws them."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mis_bench.report"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = {
        f"section-{place}-plot-{number}": json.loads(plot.figure.to_json() or "{}")
        for place, section in enumerate(report.sections, 1)
        for number, plot in enumerate(section.plots, 1)
    }
    return environment.get_template("report.html.j2").render(
        report=report,
        is_bad=is_bad,
        figures=json.dumps(figures).replace("<", "\\u003c"),  # nothing in it ends a script element
        plotly=get_plotlyjs() if figures else "",
        version=mis_bench.__version__,
        made=datetime.datetime.now(datetime.UTC),
    )


def as_markdown(report: Report) -> str:
    """Return everything but the plots: headings, headline figures, what to read off each plot, and tables."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield from [f"# {report.title}", "", report.subtitle, ""]
    for each in report.headlines:
        yield f"- **{' '.join(filter(None, (each.figure, each.unit)))}**: {each.meaning}"
    for section in report.sections:
        yield from ["", f"## {section.title}"]
        for plot in section.plots:
            yield from ["", plot.reading]
        if section.text:
            yield from ["", *(f"- {line}" for line in section.text)]
        for table in section.tables:
            yield from ["", table.as_markdown()]
