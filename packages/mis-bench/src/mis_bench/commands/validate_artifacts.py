"""`mis-bench validate-artifacts`."""

import json
from pathlib import Path

import click


@click.command("validate-artifacts")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--all", "below", is_flag=True, help="Look into the folders below PATH as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Name the files without faults as well.")
def validate_artifacts(path: Path, below: bool, as_json: bool, verbose: bool) -> None:
    """Check artifacts: that they keep to their schemas, and that their figures do not contradict each other.

    PATH is a file or a folder. All faults of all files are listed. Exit status 1 if there is one, 2 if PATH holds no
    artifact or cannot be read.
    """
    from mis_bench.checking.files import is_artifact
    from mis_bench.checking.folders import check_path

    try:
        files = check_path(path, below=below)
        passed_over = 0 if below else sum(is_artifact(file) for file in path.glob("*/**/*.json"))
    except OSError as error:
        raise click.UsageError(f"{error.filename or path} cannot be read: {error.strerror}.") from None
    if not files:
        hint = "" if below else " Look further with --all."
        raise click.UsageError(f"There is no artifact in {path}.{hint}")
    count = sum(len(each.faults) for each in files)
    if as_json:
        found = [{"path": str(each.path), "schema": each.schema, "faults": each.faults} for each in files]
        click.echo(json.dumps({"valid": count == 0, "faults": count, "files": found}, indent=1))
    else:
        for each in files:
            for fault in each.faults:
                click.echo(f"{each.path}: {fault}")
            if verbose and not each.faults:
                click.echo(f"{each.path}: valid {each.schema}")
        click.echo(f"{len(files)} files, {count} faults")
    if passed_over:
        click.echo(f"{passed_over} more in folders below were not looked at; --all does.", err=True)
    if count:
        raise SystemExit(1)
