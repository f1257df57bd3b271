"""Kinds of evidence: the files that each has, and what makes sure that they hold together."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifact import Artifact
from mis_bench.evidence.profiles import profile_faults
from mis_bench.evidence.results import results_faults
from mis_bench.evidence.validations import validation_faults
from mis_bench.manifest import MANIFEST, Kind
from mis_bench.profile.records import PROFILE, Profile
from mis_bench.results.folder import PLAN, RECORDS, SUMMARY
from mis_bench.results.plan import Plan
from mis_bench.results.summary import Summary
from mis_bench.validation.gates import VALIDATION, Validation


@dataclass(frozen=True, slots=True)
class EvidenceKind:
    """What a folder of a kind holds.

    Attributes:
        documents: Files that follow a schema; the first says what the folder is, if there is no manifest.
        check: Yields what is wrong with the content, digests aside; raises `ArtifactError` of a broken file.
        files: Further ones that every such folder has.
    """

    documents: Mapping[str, type[Artifact]]
    check: Callable[[Path, Kind], Iterator[str]]
    files: tuple[str, ...] = ()

    @property
    def stated(self) -> tuple[str, ...]:
        """Files of every such folder."""
        return (*self.documents, *self.files)

    @property
    def first(self) -> str:
        """The file that says what the folder is, if there is no manifest."""
        return next(iter(self.documents))


_RESULTS = EvidenceKind({PLAN: Plan, SUMMARY: Summary}, results_faults, (RECORDS,))

KINDS: Mapping[Kind, EvidenceKind] = {
    "run": _RESULTS,
    "callers": _RESULTS,
    "stress": _RESULTS,
    "trace": _RESULTS,
    "matrix": _RESULTS,
    "compare": _RESULTS,
    "sweep": _RESULTS,
    "perf": _RESULTS,
    "decisions": _RESULTS,
    "validate": EvidenceKind({VALIDATION: Validation}, validation_faults),
    "profile": EvidenceKind({PROFILE: Profile}, profile_faults),
}

FILES = frozenset({MANIFEST, *(name for kind in KINDS.values() for name in kind.stated)})
"""A folder that holds one of these holds evidence, whole or not."""
