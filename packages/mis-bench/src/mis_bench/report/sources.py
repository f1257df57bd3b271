"""What a report is made of: folders of results, other documents and estimates, all read and computed anew."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from mis_bench.artifact import Artifact, ArtifactError, first_fault, read_artifact
from mis_bench.estimate.serving import ServingEstimate
from mis_bench.profile.records import Profile
from mis_bench.results.folder import PLAN, RECORDS, SUMMARY
from mis_bench.results.plan import Plan
from mis_bench.results.summary import Measured
from mis_bench.validation.gates import Validation


@dataclass(frozen=True, slots=True)
class ReportSources:
    """Everything of a report, by the names of folders and files, in the order of the command line."""

    measured: list[Measured] = field(default_factory=list)
    validations: list[tuple[str, Validation]] = field(default_factory=list)
    profiles: list[tuple[str, Profile]] = field(default_factory=list)
    estimates: list[tuple[str, ServingEstimate]] = field(default_factory=list)

    @property
    def artifacts(self) -> list[tuple[str, Plan | Validation | Profile]]:
        """Everything that was measured: what has an environment."""
        return [*((each.folder.name, each.results.plan) for each in self.measured), *self.validations, *self.profiles]


def read_sources(paths: Iterable[Path]) -> ReportSources:
    """Read results, documents and estimates, and all of them in folders, whose other files are passed over.

    Raises:
        ArtifactError: a file that was named, or that claims to be ours, is broken or of no use for a report; or there
            is nothing to report.
    """
    found, files = ReportSources(), dict(_files(paths))
    names = _names([path for path in files if path.name != PLAN])
    for path, is_named in files.items():
        if path.name == PLAN:
            found.measured.append(Measured.read(path.parent))
            continue
        match _document(path, is_named):
            case Validation() as validation:
                found.validations.append((names[path], validation))
            case Profile() as profile:
                found.profiles.append((names[path], profile))
            case ServingEstimate() as estimate:
                found.estimates.append((names[path], estimate))
            case _ if is_named:
                raise ArtifactError(f"{path}: a report cannot show files of this kind.")
    if not (found.artifacts or found.estimates):
        raise ArtifactError("The given paths hold no results, no document and no estimate.")
    return found


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield files, and whether each was named; a file of a folder of results stands for its plan."""
    for path in map(Path.resolve, paths):
        if path.is_dir():
            yield from ((each, False) for each in sorted(path.rglob("*.json")))
        else:
            yield (path.with_name(PLAN) if path.name in (RECORDS, SUMMARY) else path), True


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the name of every file, and before it those of as many folders as tell it from the others."""
    names = {}
    for path in paths:
        alike = [each for each in paths if each != path and each.name == path.name]
        length = 1
        while any(each.parts[-length:] == path.parts[-length:] for each in alike):
            length += 1
        names[path] = "/".join(path.parts[-length:])
    return names


def _document(path: Path, is_named: bool) -> Artifact | ServingEstimate | None:
    """Read a document or an estimate; None of a file that was not named and is neither."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError:
        fields = None
    known = fields if isinstance(fields, dict) else {}
    if {"topology", "roofline_share"} <= known.keys():
        try:
            return ServingEstimate.model_validate(known)
        except ValidationError as error:
            raise ArtifactError(f"{path}: {first_fault(error)}") from None
    is_ours = known.get("schema_version") in (Validation.SCHEMA, Profile.SCHEMA)
    return read_artifact(path) if is_named or is_ours else None
