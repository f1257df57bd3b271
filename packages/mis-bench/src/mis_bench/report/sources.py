"""What a report is made of: artifacts of any kinds, and estimates."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from mis_bench.artifacts.base import Artifact, ArtifactError, kinds, read_artifact
from mis_bench.artifacts.comparison import Comparison
from mis_bench.artifacts.matrix import ScoreMatrix
from mis_bench.artifacts.perf import PerfResult
from mis_bench.artifacts.profile import ProfileResult
from mis_bench.artifacts.run import RunResult
from mis_bench.artifacts.stress import StressResult
from mis_bench.artifacts.trace import TraceResult
from mis_bench.artifacts.validation import ValidationResult
from mis_bench.estimate import Estimate

SHOWN = (
    RunResult, TraceResult, StressResult, ScoreMatrix, Comparison, ValidationResult, PerfResult, ProfileResult,
    Estimate,
)  # fmt: skip
"""Kinds that a report shows."""

Content = TypeVar("Content", bound=Artifact | Estimate)


@dataclass(frozen=True, slots=True)
class Source(Generic[Content]):
    """A file and what is in it."""

    path: Path
    content: Content


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of a report by kind, each kind in the order of the command line."""

    runs: list[Source[RunResult]] = field(default_factory=list)
    traces: list[Source[TraceResult]] = field(default_factory=list)
    stresses: list[Source[StressResult]] = field(default_factory=list)
    matrices: list[Source[ScoreMatrix]] = field(default_factory=list)
    comparisons: list[Source[Comparison]] = field(default_factory=list)
    validations: list[Source[ValidationResult]] = field(default_factory=list)
    perfs: list[Source[PerfResult]] = field(default_factory=list)
    profiles: list[Source[ProfileResult]] = field(default_factory=list)
    estimates: list[Source[Estimate]] = field(default_factory=list)

    @property
    def artifacts(self) -> list[Source[Any]]:
        """All files but the estimates, which have no environment."""
        return [
            *self.runs, *self.traces, *self.matrices, *self.comparisons, *self.validations, *self.stresses, *self.perfs,
            *self.profiles,
        ]  # fmt: skip


def read_sources(paths: Iterable[Path]) -> Sources:
    """Read files, and every artifact and estimate in folders.

    Other files of a folder are passed over: figures of single configurations, which their matrix holds too, metadata,
    and JSON that is none of ours.

    Raises:
        ArtifactError: a file that was named, or that claims to be an artifact, is broken or of no use for a report; or
            there is nothing to report.
    """
    found: dict[Path, Source[Any]] = {}
    for path, is_named in _files(paths):
        if path.resolve() not in found and (is_named or _is_ours(path)):
            found[path.resolve()] = Source(path, _read(path))
            if is_named and not isinstance(found[path.resolve()].content, SHOWN):
                raise ArtifactError(f"{path}: a report shows no files of this kind.")

    def of(kind: type[Content]) -> list[Source[Content]]:
        return [source for source in found.values() if isinstance(source.content, kind)]

    if not any(isinstance(source.content, SHOWN) for source in found.values()):
        raise ArtifactError("There is no artifact and no estimate in what was named.")
    return Sources(
        runs=of(RunResult),
        traces=of(TraceResult),
        stresses=of(StressResult),
        matrices=of(ScoreMatrix),
        comparisons=of(Comparison),
        validations=of(ValidationResult),
        perfs=of(PerfResult),
        profiles=of(ProfileResult),
        estimates=of(Estimate),
    )


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    for path in paths:
        if path.is_dir():
            yield from ((each, False) for each in sorted(path.rglob("*.json")))
        else:
            yield path, True


def _is_ours(path: Path) -> bool:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(fields, dict) and (fields.get("schema_version") in kinds() or _is_estimate(fields))


def _is_estimate(fields: dict) -> bool:
    return "schema_version" not in fields and {"topology", "roofline_share"} <= fields.keys()


def _read(path: Path) -> Artifact | Estimate:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    if not isinstance(fields, dict) or not _is_estimate(fields):
        return read_artifact(path)
    try:
        return Estimate.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtifactError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def distinct(values: Iterable[str]) -> Sequence[str]:
    """Return values once each, in order."""
    return list(dict.fromkeys(values))
