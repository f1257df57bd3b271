"""`mis-bench validate-artifacts`."""

import json
from pathlib import Path

import click


@click.command("validate-artifacts")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--all", "below", is_flag=True, help="Look into the folders below PATH as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Name what is without faults as well.")
def validate_artifacts(path: Path, below: bool, as_json: bool, verbose: bool) -> None:
    """Check results: that records fit their plan, and that the summary is what the records make it.

    PATH is a folder of results, or a file or folder of other artifacts. All faults are listed. Exit status 1 if there
    is one, 2 if PATH holds nothing to check.
    """
    from mis_bench.checks import check_path

    try:
        found = check_path(path, below=below)
    except OSError as error:
        raise click.UsageError(f"{error.filename or path} cannot be read: {error.strerror}.") from None
    if not found:
        raise click.UsageError(f"There is nothing to check in {path}.{'' if below else ' Look further with --all.'}")
    count = sum(len(each.faults) for each in found)
    if as_json:
        files = [{"path": str(each.path), "schema": each.kind, "faults": each.faults} for each in found]
        click.echo(json.dumps({"valid": count == 0, "faults": count, "files": files}, indent=1))
    else:
        for each in found:
            for fault in each.faults:
                click.echo(f"{each.path}: {fault}")
            if verbose and not each.faults:
                click.echo(f"{each.path}: valid {each.kind}")
        click.echo(f"{len(found)} checked, {count} faults")
    if count:
        raise SystemExit(1)
