"""`mis-bench validate-artifacts`: whether evidence is whole, as it was written, and what its plan promised."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mis_bench.results.folder import RECORDS

if TYPE_CHECKING:
    from mis_bench.evidence.folder import Checked


_BEGIN_BYTES = 4096  # within which our documents name their schema
_MOST_BYTES = 256 * 1024 * 1024  # of a document that stands alone


@click.command("validate-artifacts")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--all", "below", is_flag=True, help="Check the folders below PATH as well.")
def validate_artifacts(path: Path, below: bool) -> None:
    """Check that evidence is complete and unchanged.

    Evidence must also agree with its plan and with its raw data.

    PATH is a folder of results, a folder of a validation or a profile, or a document of mis-bench. All faults are
    listed. The exit status is 1 if there is a fault, and 2 if PATH holds nothing to check.
    """
    found = check_path(path, below=below)
    if not found:
        raise click.UsageError(f"There is nothing to check in {path}.{'' if below else ' Look further with --all.'}")
    for each in found:
        for warning in each.warnings:
            click.echo(f"{each.path}: warning: {warning}")
    faults = [f"{each.path}: {fault}" for each in found for fault in each.faults]
    click.echo("\n".join([*faults, f"{len(found)} checked, {len(faults)} faults"]))
    if faults:
        raise SystemExit(1)


def check_path(path: Path, *, below: bool) -> "list[Checked]":
    """Check a document, or all evidence in a folder and, if wanted, in those below it.

    A file of a folder of evidence stands for its folder.
    """
    from mis_bench.evidence.folder import check_file, check_folder  # late: `--help` needs none of what they read
    from mis_bench.evidence.kinds import FILES

    if path.is_file():
        return [check_folder(path.parent) if path.name in FILES else check_file(path)]
    files = sorted(each for each in path.glob("**/*" if below else "*") if each.is_file())
    folders = dict.fromkeys(each.parent for each in files if each.name in FILES and not (below and _is_another(each)))
    alone = [each for each in files if each.parent not in folders and _claims(each)]
    return [*map(check_folder, folders), *map(check_file, alone)]


def _is_another(path: Path) -> bool:
    """Whether a file of a name that evidence has, a web application's `manifest.json` for instance, is none of ours."""
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES)
    return bool(begin) and b'"mis-' not in begin and not (path.name == RECORDS and b'"kind"' in begin)


def _claims(path: Path) -> bool:
    """Whether a file claims to be a document of ours."""
    if path.suffix != ".json" or path.stat().st_size > _MOST_BYTES:
        return False
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "schema_version" in fields
