"""`mis-bench report`: one page of all that was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mis_bench.report.rooflines import Roof

_FILE = click.Path(dir_okay=False, path_type=Path)


def _roofs(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, "Roof"]:
    from mis_bench.report.rooflines import Roof

    found = {}
    for text in texts:
        name, _, rates = text.rpartition("=")
        try:
            flops, bandwidth = (float(each) for each in rates.split(","))
        except ValueError:
            flops = bandwidth = 0.0
        if not name or not (0 < flops < float("inf") and 0 < bandwidth < float("inf")):
            raise click.BadParameter(f"{text[:80]!r} is not NAME=TFLOPS,GBYTES, such as cpu=3.2,40.")
        found[name] = Roof(name, flops * 1e12, bandwidth * 1e9)
    return found


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(exists=True, path_type=Path))
@click.option("--output", required=True, type=_FILE, help="HTML file to write.")
@click.option("--markdown", type=_FILE, help="Markdown file to write as well.")
@click.option("--title", show_default="made of the workloads", help="Heading of the page.")
@click.option(
    "--roof",
    "roofs",
    multiple=True,
    callback=_roofs,
    metavar="NAME=TFLOPS,GBYTES",
    help="Peak of the hardware that runs name, or of `cpu`, a second: TFLOP and GB. For the roofline; repeatable.",
)
def report(paths: tuple[Path, ...], output: Path, markdown: Path | None, **options: Any) -> None:
    """Write one HTML page of all that was measured; it needs no network and no other file.

    PATH is a folder of results, a document of mis-bench, the JSON of `mis-bench estimate --json`, or a folder of such.
    """
    from mis_bench.artifact import ArtifactError
    from mis_bench.report import write_report

    try:
        made = write_report(paths, output, markdown=markdown, **options)
    except ArtifactError as error:
        raise click.BadParameter(str(error), param_hint="PATH") from None
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from None
    click.echo(f"{output}: {len(made.sections)} sections, {output.stat().st_size / 1e6:.1f} MB")
    if markdown is not None:
        click.echo(str(markdown))
