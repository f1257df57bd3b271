"""The artifacts of `mis-bench matrix`: the mission's plan, a file for each configuration, and the matrix of all."""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
from pydantic import AwareDatetime, Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.judging import LIMITS, Candidate, Verdict, difference, judged
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow
from mis_bench.artifacts.parts import WorkloadPart, repeated, times, unlike
from mis_bench.targets.base import About, Scores

View = Literal["portable", "best_native"]
Phase = Literal["sweep", "confirm"]


class MatrixPlan(Part):
    """Everything that decides what a mission measures; a mission may only be resumed with the same plan."""

    target: str = Field(description="As on the command line.")
    model: str | None
    options: dict[str, str]
    evaluation_view: View
    cache: Literal["cold", "warm"] = Field(description="cold: the target forgets the query before every run.")
    workload: WorkloadPart
    configurations: list[Configuration] = Field(min_length=1)
    warmup_runs: int = Field(ge=1)
    sweep_runs: int = Field(ge=1)
    confirm_runs: int = Field(ge=1)
    timeout_seconds: float = Field(gt=0)
    hourly_cost: float | None = Field(gt=0, description="US dollars an hour of the target's machine.")


class RunMetadata(Artifact, schema="mis-matrix-metadata-v1"):
    """`run_metadata.json`: written when a mission starts."""

    run_id: str = Field(min_length=1)
    plan: MatrixPlan

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from (f"plan.workload.{fault}" for fault in self.plan.workload.inconsistencies())
        for name in repeated([each.name for each in self.plan.configurations]):
            yield f"plan.configurations: {name} occurs twice"


class MatrixChunk(Artifact, schema="mis-matrix-chunk-v1"):
    """`chunk_<n>.json`, `confirm_chunk_<n>.json`: one configuration, written as soon as it is measured."""

    run_id: str = Field(min_length=1)
    phase: Phase
    finished: AwareDatetime
    target: About | None = Field(description="Null if it could not run in this configuration.")
    evaluation_view: View
    workload: WorkloadPart
    row: MatrixRow

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from times(self.environment, self.finished)
        yield from (f"workload.{fault}" for fault in self.workload.inconsistencies())
        yield from (f"row.{fault}" for fault in row_faults(self.row, self.workload, self.evaluation_view))


class Winner(Part):
    """The best row of a sweep or of its confirmation."""

    configuration: Configuration
    throughput_items_sec: float = Field(gt=0)
    p95_total_e2e_ms: float = Field(gt=0)


class MatrixSummary(Part):
    """Which configuration wins, and why others may not."""

    best_chunk_size: int | None = Field(description="Of the recommendation; null if no row may win.")
    best_throughput: float | None = Field(description="Items a second of the recommendation.")
    total_configs_tested: int = Field(ge=0)
    successful_configs: int = Field(ge=0, description="Rows of the sweep whose status is ok.")
    sweep: Winner | None
    confirm: Winner | None
    recommendation: Configuration | None = Field(description="Winner of the confirmation.")
    ineligible: dict[str, str] = Field(description="Reasons by name, for rows of the sweep that may not win.")
    ineligible_confirmed: dict[str, str] = Field(description="Likewise, for rows of the confirmation.")

    @classmethod
    def of(cls, results: Sequence[MatrixRow], confirmed: Sequence[MatrixRow]) -> Self:
        """Sum up a sweep and its confirmation.

        Scores of both are held against one row of the sweep, that with the smallest chunks; rows of a confirmation
        that agree with each other alone prove nothing.
        """
        truth = reference_of(results)
        sweep, confirm = winner(results, truth), winner(confirmed, truth)
        return cls(
            best_chunk_size=confirm.configuration.chunk_size if confirm else None,
            best_throughput=confirm.throughput_items_sec if confirm else None,
            total_configs_tested=len(results),
            successful_configs=sum(row.status == "ok" for row in results),
            sweep=sweep,
            confirm=confirm,
            recommendation=confirm.configuration if confirm else None,
            ineligible=ineligible(results, truth),
            ineligible_confirmed=ineligible(confirmed, truth),
        )


class ScoreMatrix(Artifact, schema="mis-score-matrix-v1"):
    """`matrix_results.json`: all rows, and the winner."""

    run_id: str = Field(min_length=1)
    finished: AwareDatetime
    target: About = Field(description="With its options: the server's configuration.")
    evaluation_view: View
    workload: WorkloadPart
    total_runtime_seconds: float = Field(ge=0, description="Of measuring, over all sittings of a resumed mission.")
    results: list[MatrixRow] = Field(min_length=1)
    confirm_results: list[MatrixRow]
    summary: MatrixSummary
    notes: list[str] = Field(default_factory=list)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from times(self.environment, self.finished)
        yield from (f"workload.{fault}" for fault in self.workload.inconsistencies())
        for field, rows in (("results", self.results), ("confirm_results", self.confirm_results)):
            for name in repeated([row.configuration.name for row in rows]):
                yield f"{field}: {name} occurs twice"
            for number, row in enumerate(rows):
                yield from (
                    f"{field}.{number}.{fault}" for fault in row_faults(row, self.workload, self.evaluation_view)
                )
        swept = {row.configuration.name for row in self.results}
        for row in self.confirm_results:
            if row.configuration.name not in swept:
                yield f"confirm_results: {row.configuration.name} is not in results"
        measured = sum(
            record.total_e2e_ms for row in [*self.results, *self.confirm_results] for record in row.run_records
        )
        if measured > self.total_runtime_seconds * 1e3 + 1:
            yield "total_runtime_seconds is less than the runs together"
        anew = MatrixSummary.of(self.results, self.confirm_results)
        yield from (f"summary.{fault}" for fault in unlike(self.summary, {"best_throughput": anew.best_throughput}))
        for field in MatrixSummary.model_fields:
            if field != "best_throughput" and getattr(self.summary, field) != getattr(anew, field):
                yield f"summary.{field} is not what the rows make it"


def reference_of(results: Sequence[MatrixRow]) -> MatrixRow | None:
    """Return the row whose scores a mission's other rows must have: of those that are ok the smallest chunks."""
    good = [row for row in results if row.status == "ok" and row.reference_scores is not None]
    return min(good, key=lambda row: row.configuration.chunk_size or np.inf, default=None)


def winner(rows: Sequence[MatrixRow], reference: MatrixRow | None) -> Winner | None:
    """Return the best of rows by the rules (`judged`), their scores held against those of the reference."""
    best = _judged(rows, reference)[1]
    if best is None:
        return None
    row = rows[best]
    return Winner(
        configuration=row.configuration,
        throughput_items_sec=row.throughput_items_sec or 0,
        p95_total_e2e_ms=row.p95_total_e2e_ms or 0,
    )


def ineligible(rows: Sequence[MatrixRow], reference: MatrixRow | None) -> dict[str, str]:
    """Return why rows may not win, by name."""
    verdicts, _ = _judged(rows, reference)
    return {
        row.configuration.name: "; ".join(verdict.reasons)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.reasons
    }


def row_faults(row: MatrixRow, workload: WorkloadPart, view: View) -> Iterator[str]:
    """Yield contradictions of a row, and of the row with its workload."""
    yield from row.inconsistencies()
    if row.reference_scores is not None:
        labels = {len(scores) for scores in row.reference_scores}
        if len(row.reference_scores) != workload.num_items or labels != {workload.num_labels}:
            yield f"reference_scores are not {workload.num_items} items by {workload.num_labels} labels"
        elif not all(-1e-6 <= score <= 1 + 1e-6 for scores in row.reference_scores for score in scores):
            yield "reference_scores are not all from 0 to 1"
    size = row.configuration.chunk_size
    if view == "portable" and size == 0:
        yield "configuration.chunk_size is 0, but the client cuts the request"
        return
    chunks = -(-workload.num_items // size) if view == "portable" else 1
    if row.num_chunks != chunks:
        yield f"num_chunks is {row.num_chunks}, not {chunks}"


def _judged(rows: Sequence[MatrixRow], reference: MatrixRow | None) -> tuple[list[Verdict], int | None]:
    truth = None if reference is None else np.asarray(reference.reference_scores, float)
    return judged([_candidate(row, truth) for row in rows], LIMITS)


def _candidate(row: MatrixRow, truth: Scores | None) -> Candidate:
    answers = [] if row.reference_scores is None else [np.asarray(row.reference_scores, float)]
    items = 0 if truth is None else len(truth)
    compiled = row.timed_compilations or 0
    return Candidate(
        speed=row.throughput_items_sec,
        p95_ms=row.p95_total_e2e_ms,
        success_rate=row.success_rate,
        difference=difference(row.configuration.name, answers, truth, LIMITS, items=items),
        items=items,
        size=(row.configuration.chunk_size,),
        objections=(f"{compiled} compilations in timed runs",) if compiled else (),
    )
