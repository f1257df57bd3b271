"""`mis-bench report`: one page of all that was measured."""

from pathlib import Path

import click

from mis_bench.artifact import ArtifactError

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(exists=True, path_type=Path))
@click.option("--output", required=True, type=_FILE, help="HTML file to write.")
@click.option("--markdown", type=_FILE, show_default="none", help="Markdown file to write as well.")
@click.option("--title", default="Multi-item scoring", help="Heading of the page.")
def report(paths: tuple[Path, ...], output: Path, markdown: Path | None, title: str) -> None:
    """Write one HTML page of all measurements.

    The page needs no network and no other file.

    PATH is a folder of results, a document of mis-bench, the JSON of `mis-bench estimate --json`, or a folder of these.
    """
    from mis_bench.report.writing import write_report

    try:
        write_report(paths, output, markdown=markdown, title=title)
    except ArtifactError as error:
        raise click.BadParameter(str(error), param_hint="PATH") from None
    click.echo(f"Written: {output}", err=True)
