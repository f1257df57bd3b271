"""Targets compared through the matrices that `mis-bench matrix` wrote, each maybe on another machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mis_bench.artifacts.base import ArtifactError, read_artifact
from mis_bench.artifacts.comparison import ComparedTarget
from mis_bench.artifacts.matrix import ScoreMatrix
from mis_bench.artifacts.matrix_row import MatrixRow
from mis_bench.comparison.assemble import Evidence
from mis_bench.comparison.series import Series
from mis_bench.targets.base import Scores

RESULTS = "matrix_results.json"
"""The matrix in the folder of a mission."""


class NotComparable(ValueError):
    """Matrices that cannot stand side by side; one sentence says why."""


@dataclass(frozen=True, slots=True)
class NamedMatrix:
    """A matrix, the name that its target gets in the comparison, and its file."""

    name: str
    matrix: ScoreMatrix
    path: Path


def read_matrix(text: str) -> NamedMatrix:
    """Read a matrix.

    Args:
        text: A file, or the folder of a mission; `NAME=PATH` gives the target another name than its own.

    Raises:
        ArtifactError: it is no matrix.
    """
    name, path = "", Path(text)
    if "=" in text and not path.exists():
        name, _, rest = text.partition("=")
        path = Path(rest)
    path = path / RESULTS if path.is_dir() else path
    matrix = read_artifact(path)
    if not isinstance(matrix, ScoreMatrix):
        raise ArtifactError(f"{path}: is {matrix.schema_version}, not a matrix ({ScoreMatrix.SCHEMA})")
    return NamedMatrix(name or matrix.target.name, matrix, path)


def evidence_of(matrices: Sequence[NamedMatrix], hourly_cost_usd: Mapping[str, float]) -> Evidence:
    """Put matrices side by side.

    The portable view is made of the sweeps of portable matrices. For the best-native view every target brings all
    that was confirmed, or swept where nothing was, from matrices of both views.

    Raises:
        NotComparable: the workloads differ, or two matrices are the same view of one target.
    """
    first = matrices[0]
    by_name: dict[str, list[NamedMatrix]] = {}
    for each in matrices:
        if each.matrix.workload != first.matrix.workload:
            raise NotComparable(
                f"{each.path} has the workload {_workload(each)}, but {first.path} has {_workload(first)}; "
                "measure the same workload on both."
            )
        others = by_name.setdefault(each.name, [])
        twin = next((other for other in others if other.matrix.evaluation_view == each.matrix.evaluation_view), None)
        if twin is not None:
            raise NotComparable(
                f"{twin.path} and {each.path} are both {each.matrix.evaluation_view} matrices of {each.name}; "
                "tell them apart by NAME=PATH."
            )
        others.append(each)
    return Evidence(
        workload=first.matrix.workload,
        targets=[_target(name, those, hourly_cost_usd.get(name)) for name, those in by_name.items()],
        portable=[
            _series(each, row, whole=False)
            for each in matrices
            if each.matrix.evaluation_view == "portable"
            for row in each.matrix.results
        ],
        native=[
            _series(each, row, whole=each.matrix.evaluation_view == "best_native")
            for each in matrices
            for row in each.matrix.confirm_results or each.matrix.results
        ],
        answers={name: list(_answers(those)) for name, those in by_name.items()},
        measured_together=False,
        notes=[*_notes(by_name), *(f"{each.name}: {note}" for each in matrices for note in each.matrix.notes)],
    )


def _workload(named: NamedMatrix) -> str:
    workload = named.matrix.workload
    return f"{workload.name} ({'softmax' if workload.apply_softmax else 'probabilities'}, {workload.sha256[:12]})"


def _target(name: str, those: Sequence[NamedMatrix], hourly_cost_usd: float | None) -> ComparedTarget:
    matrix, about = those[0].matrix, those[0].matrix.target
    costs = [cost for each in those for row in each.matrix.results if (cost := _hourly_cost(row)) is not None]
    return ComparedTarget(
        name=name,
        backend=about.backend,
        hardware=matrix.environment.hardware,
        model=about.model,
        model_sha256=about.model_sha256,
        dtype=about.dtype,
        options=about.options,
        versions=about.versions,
        hourly_cost_usd=hourly_cost_usd or next(iter(costs), None),
        source=", ".join(str(each.path) for each in those),
    )


def _hourly_cost(row: MatrixRow) -> float | None:
    if not row.usd_per_run or not row.mean_total_e2e_ms:
        return None
    return row.usd_per_run * 3.6e6 / row.mean_total_e2e_ms


def _series(named: NamedMatrix, row: MatrixRow, *, whole: bool) -> Series:
    items, configuration = named.matrix.workload.num_items, row.configuration
    timed = [record for record in row.run_records if record.phase == "timed"]
    first = next((record for record in row.run_records if record.phase == "warmup" and record.failure is None), None)
    layout = [each for each in (configuration.scoring_algorithm, configuration.mask_impl) if each != "auto"]
    own = [f"own chunks of {configuration.chunk_size}"] if whole and configuration.chunk_size else []
    return Series(
        target=named.name,
        chunk_items=items if whole else min(items, configuration.chunk_size),
        items=items,
        seconds=tuple(None if record.failure else record.total_e2e_ms / 1e3 for record in timed),
        failures=row.failure_reason_counts,
        first_seconds=None if first is None else first.total_e2e_ms / 1e3,
        server_chunk_items=configuration.chunk_size if whole else 0,
        setting=", ".join([*layout, *own]),
    )


def _answers(those: Iterable[NamedMatrix]) -> Iterator[Scores]:
    """Yield the label softmaxes of every row; probabilities become softmaxes by dividing by their sum."""
    for each in those:
        for row in [*each.matrix.results, *each.matrix.confirm_results]:
            if row.reference_scores is not None:
                scores = np.asarray(row.reference_scores, float)
                yield scores if each.matrix.workload.apply_softmax else scores / scores.sum(-1, keepdims=True)


def _notes(by_name: Mapping[str, Sequence[NamedMatrix]]) -> Iterator[str]:
    yield "The targets were measured in separate runs; ratios hold all that differs between them, machines included."
    abouts = [(name, each.matrix) for name, those in by_name.items() for each in those]
    facts = {
        "hardware": {(name, matrix.environment.hardware) for name, matrix in abouts},
        "dtype": {(name, matrix.target.dtype) for name, matrix in abouts},
        "checkpoint": {(name, (matrix.target.model_sha256 or "")[:12] or None) for name, matrix in abouts},
    }
    for fact, found in facts.items():
        if len({value for _, value in found}) > 1:
            said = "; ".join(f"{name}: {value or 'unknown'}" for name, value in sorted(found, key=str))
            yield f"The {fact} differs: {said}."
    native = {name for name, those in by_name.items() for each in those if each.matrix.evaluation_view == "best_native"}
    for name in by_name:
        if name not in native:
            yield f"{name} has no best-native matrix; its best portable setting stands in."
