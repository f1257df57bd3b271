"""`mis-bench validate-artifacts`: whether files keep to their schemas, and summaries are what records come to."""

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click

from mis_bench.artifact import ArtifactError, read_artifact
from mis_bench.results.records import PLAN, SUMMARY, Plan, read_results
from mis_bench.results.summary import Summary, summarize


class Checked(NamedTuple):
    """A file or folder, the name of its schema, and what is wrong with it, one sentence each."""

    path: Path
    kind: str
    faults: list[str]


@click.command("validate-artifacts")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--all", "below", is_flag=True, help="Look into the folders below PATH as well.")
def validate_artifacts(path: Path, below: bool) -> None:
    """Check that results keep to their schemas, and that the summary is what the records make it.

    PATH is a folder of results, or a file or folder of other artifacts. All faults are listed. Exit status 1 if there
    is one, 2 if PATH holds nothing to check.
    """
    found = check_path(path, below=below)
    if not found:
        raise click.UsageError(f"There is nothing to check in {path}.{'' if below else ' Look further with --all.'}")
    faults = [f"{each.path}: {fault}" for each in found for fault in each.faults]
    click.echo("\n".join([*faults, f"{len(found)} checked, {len(faults)} faults"]))
    if faults:
        raise SystemExit(1)


def check_path(path: Path, *, below: bool) -> list[Checked]:
    """Check a file, or everything in a folder and, if wanted, in those below it."""
    if path.is_file():
        return [_checked(path)]
    files = sorted(path.glob("**/*.json" if below else "*.json"))  # a plan stands for its folder
    return [_checked(file) for file in files if file.name == PLAN or _stands_alone(file)]


def _checked(path: Path) -> Checked:
    is_folder = path.name == PLAN
    where, kind = (path.parent, Plan.SCHEMA) if is_folder else (path, "")
    try:
        if is_folder:
            return Checked(where, kind, list(islice(_summary_faults(where), 10)))
        return Checked(where, read_artifact(path).SCHEMA, [])
    except ArtifactError as error:
        return Checked(where, kind, [str(error)])


def _summary_faults(folder: Path) -> Iterator[str]:
    """Yield where stored figures are not those that the records make, rounding aside."""
    results = read_results(folder)
    if not (folder / SUMMARY).exists():
        yield f"there is no {SUMMARY}: the run was interrupted"
        return
    stored = read_artifact(folder / SUMMARY)
    if not isinstance(stored, Summary):
        yield f"{SUMMARY} is no {Summary.SCHEMA}"
        return
    mine, theirs = (dict(_figures(each.model_dump(exclude={"generated_by"}))) for each in (summarize(results), stored))
    for where in mine | theirs:
        anew, found = mine.get(where), theirs.get(where)
        if isinstance(anew, float) and isinstance(found, float) and math.isclose(anew, found, rel_tol=1e-9):
            continue
        if anew != found:
            yield f"{SUMMARY}: {where} is {str(found)[:80]}, but the records make it {str(anew)[:80]}"


def _figures(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every figure of a document, and where it is."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _figures(each, f"{where}.{name}".lstrip("."))
    else:
        yield where, value


def _stands_alone(path: Path) -> bool:
    """Whether a file claims to be an artifact, and belongs to no folder of results."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
    return isinstance(fields, dict) and "schema_version" in fields and not (path.parent / PLAN).exists()
