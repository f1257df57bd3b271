"""`mis-bench validate-artifacts`."""

from pathlib import Path

import click


@click.command("validate-artifacts")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--all", "below", is_flag=True, help="Look into the folders below PATH as well.")
def validate_artifacts(path: Path, below: bool) -> None:
    """Check that results keep to their schemas, and that the summary is what the records make it.

    PATH is a folder of results, or a file or folder of other artifacts. All faults are listed. Exit status 1 if there
    is one, 2 if PATH holds nothing to check.
    """
    from mis_bench.checks import check_path

    found = check_path(path, below=below)
    if not found:
        raise click.UsageError(f"There is nothing to check in {path}.{'' if below else ' Look further with --all.'}")
    faults = [f"{each.path}: {fault}" for each in found for fault in each.faults]
    click.echo("\n".join([*faults, f"{len(found)} checked, {len(faults)} faults"]))
    if faults:
        raise SystemExit(1)
