"""A report as Markdown: everything but the plots."""

from collections.abc import Iterator

from mis_bench.comparison.markdown import table
from mis_bench.report.contents import Contents


def as_markdown(report: Contents) -> str:
    """Return headings, headline figures, what to read off each plot, and tables."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Contents) -> Iterator[str]:
    yield from [f"# {report.title}", "", report.subtitle, ""]
    for each in report.headlines:
        yield f"- **{' '.join(filter(None, (each.figure, each.unit)))}**: {each.meaning}"
    for section in report.sections:
        yield from ["", f"## {section.title}"]
        for plot in section.plots:
            yield from ["", plot.reading]
        if section.text:
            yield from ["", *(f"- {line}" for line in section.text)]
        for each in section.tables:
            yield from ["", f"{each.caption}:", "", *table(each.header, each.rows)]
