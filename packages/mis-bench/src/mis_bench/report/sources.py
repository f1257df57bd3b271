"""What a report is made of: folders of results, other documents and estimates, all read and computed anew."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mis_bench.artifact import ArtifactError, first_fault, read_artifact
from mis_bench.estimate import Estimate
from mis_bench.figures import Row
from mis_bench.profile.records import Profile
from mis_bench.records import PLAN, RECORDS, SUMMARY, Plan, Results, read_results
from mis_bench.summary import Summary, summarize
from mis_bench.validation.gates import Validation


@dataclass(frozen=True, slots=True)
class Measured:
    """A folder of results, with its figures.

    Attributes:
        name: Of the folder.
        results: Plan and records.
        summary: All figures, computed from them just now.
    """

    name: str
    results: Results
    summary: Summary

    @property
    def plan(self) -> Plan:
        """What was to be measured."""
        return self.results.plan

    @property
    def drawn(self) -> list[Row]:
        """Rows whose figures may be drawn: a few answered calls of one that failed are no measurement."""
        return [row for row in self.summary.rows if row.status in ("ok", "warn") and row.items_per_second]


@dataclass(frozen=True, slots=True)
class Document:
    """A document that is no folder of results: a validation, a profile."""

    name: str
    content: Validation | Profile


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything of a report, in the order of the command line."""

    measured: list[Measured] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    estimates: list[tuple[str, Estimate]] = field(default_factory=list)

    @property
    def validations(self) -> list[tuple[str, Validation]]:
        """Validations by name."""
        return [(each.name, each.content) for each in self.documents if isinstance(each.content, Validation)]

    @property
    def profiles(self) -> list[tuple[str, Profile]]:
        """Profiles by name."""
        return [(each.name, each.content) for each in self.documents if isinstance(each.content, Profile)]


def read_sources(paths: Iterable[Path]) -> Sources:
    """Read results, documents and estimates, and all of them in folders.

    Other files of a folder are passed over.

    Raises:
        ArtifactError: a file that was named, or that claims to be ours, is broken or of no use for a report; or there
            is nothing to report.
    """
    found, seen = Sources(), set()
    for path, is_named in _files(paths):
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        fields = _json(path, must=is_named)
        if path.name == PLAN:
            results = read_results(path.parent)
            found.measured.append(Measured(path.resolve().parent.name, results, summarize(results)))
        elif "schema_version" not in fields and {"topology", "roofline_share"} <= fields.keys():
            found.estimates.append((path.name, _estimate(path)))
        elif is_named or fields.get("schema_version") in (Validation.SCHEMA, Profile.SCHEMA):
            content = read_artifact(path)
            if not isinstance(content, Validation | Profile):
                raise ArtifactError(f"{path}: a report shows no files of this kind.")
            found.documents.append(Document(path.name, content))
    if not (found.measured or found.documents or found.estimates):
        raise ArtifactError("There are no results, no document and no estimate in what was named.")
    return found


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield files, and whether each was named; a file of a folder of results stands for its plan."""
    for path in paths:
        if path.is_dir():
            yield from ((each, False) for each in sorted(path.rglob("*.json")))
        elif path.name in (PLAN, RECORDS, SUMMARY):
            yield path.with_name(PLAN), True
        else:
            yield path, True


def _json(path: Path, *, must: bool) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if must:
            raise ArtifactError(f"{path}: {error}") from None
        return {}
    return fields if isinstance(fields, dict) else {}


def _estimate(path: Path) -> Estimate:
    try:
        return Estimate.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactError(f"{path}: {first_fault(error)}") from None
