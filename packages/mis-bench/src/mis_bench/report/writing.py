"""One page of all that was measured: results, documents and estimates in, a self-contained page and Markdown out."""

from collections.abc import Iterable
from pathlib import Path

from mis_bench.artifact import naming
from mis_bench.manifest import VIEW
from mis_bench.report import about, documents, results
from mis_bench.report.page import Section, as_html, as_markdown
from mis_bench.report.sources import ReportSources, read_sources


def write_report(
    paths: Iterable[Path], output: Path, *, markdown: Path | None = None, title: str = "Multi-item scoring"
) -> None:
    """Write the page.

    Args:
        paths: Folders of results, documents, estimates as JSON, or folders of such.
        output: HTML file to write.
        markdown: Markdown file to write as well.
        title: Heading of the page.

    Raises:
        ArtifactError: a file is broken or of no use, or there is nothing to report.
        OSError: a file cannot be written.
    """
    sections = _sections(read_sources(paths))
    _write(output, as_html(title, sections))
    if markdown is not None:
        _write(markdown, as_markdown(title, sections))


def write_view(sources: ReportSources, folder: Path) -> None:
    """Write the page of one folder of evidence beside it, in Markdown; raises `OSError` if it cannot be written."""
    _write(folder / VIEW, as_markdown(folder.resolve().name, _sections(sources)))


def _write(path: Path, text: str) -> None:
    with naming(path):
        path.write_text(text, encoding="utf-8")


def _sections(sources: ReportSources) -> list[Section]:
    return [
        about.overview(sources),
        *results.sections(sources.measured),
        *documents.sections(sources),
        *about.sections(sources),
    ]
