"""`mis-bench`: the command line."""

from pathlib import Path

import click

from mis_bench import __version__
from mis_bench.workload import CANONICAL, WorkloadNameError, build_workload


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="mis-bench")
def main() -> None:
    """Workloads and measurements for multi-item scoring."""


@main.command()
@click.argument("name", default=CANONICAL)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of printing.")
def workload(name: str, output: Path | None) -> None:
    """Print a workload as JSON: its name, checksum, and the body for POST /v1/score.

    NAME is KIND-Q-N-L: Q query tokens and N items of L tokens.
    """
    try:
        built = build_workload(name)
    except WorkloadNameError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    if output is None:
        click.echo(built.to_json())
        return
    try:
        output.write_text(built.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(output), error.strerror) from None
    click.echo(f"{output}: {built.name}, {built.num_tokens:,} tokens, sha256 {built.sha256}")
