"""One page of all that was measured: results, documents and estimates in, a self-contained page and Markdown out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mis_bench.report.page import Report
    from mis_bench.report.rooflines import Roof
    from mis_bench.report.sources import Sources


def write_report(
    paths: Iterable[Path],
    output: Path,
    *,
    markdown: Path | None = None,
    title: str | None = None,
    roofs: Mapping[str, "Roof"] | None = None,
) -> "Report":
    """Write the page.

    Args:
        paths: Folders of results, documents, estimates as JSON, or folders of such.
        output: HTML file to write.
        markdown: Markdown file to write as well.
        title: Heading of the page, instead of one made of the workloads.
        roofs: Peaks of hardware that runs name, or of `cpu`, for the roofline.

    Raises:
        ArtifactError: a file is broken or of no use, or there is nothing to report.
        OSError: a file cannot be written.
    """
    from mis_bench.report.page import as_html, as_markdown
    from mis_bench.report.sources import read_sources

    report = contents(read_sources(paths), title=title, roofs=roofs or {})
    output.write_text(as_html(report), encoding="utf-8")
    if markdown is not None:
        markdown.write_text(as_markdown(report), encoding="utf-8")
    return report


def contents(sources: "Sources", *, title: str | None = None, roofs: Mapping[str, "Roof"]) -> "Report":
    """Decide what the page says; arguments as for `write_report`."""
    from mis_bench.report import about, documents, results, rooflines
    from mis_bench.report.page import Report

    roofline = rooflines.section(sources, roofs)
    sections = [
        *results.sections(sources.measured),
        *documents.sections(sources),
        *([roofline] if roofline else []),
        *about.sections(sources),
    ]
    return Report(title or about.title(sources), about.subtitle(sources), about.headlines(sources), sections)
