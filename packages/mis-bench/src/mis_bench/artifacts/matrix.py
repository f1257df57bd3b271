"""The artifacts of `mis-bench matrix`: the mission's plan, a file for each configuration, and the matrix of all."""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
from pydantic import AwareDatetime, Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow
from mis_bench.artifacts.parts import WorkloadPart, repeated, times, unlike
from mis_bench.targets.base import About

GUARDRAIL_RATIO = 1.25
"""A winner's p95 is at most this many times the lowest p95."""

MAX_ABS, MEAN_ABS = 0.02, 0.01
"""Differences from the scores of the row with the smallest chunks, up to which a row may win."""

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
    recommendation: Configuration | None = Field(description="Winner of the confirmation, else of the sweep.")
    ineligible: dict[str, str] = Field(description="Reason by name, for rows of the sweep that may not win.")

    @classmethod
    def of(cls, results: Sequence[MatrixRow], confirmed: Sequence[MatrixRow]) -> Self:
        """Sum up a sweep and its confirmation."""
        sweep, confirm = winner(results), winner(confirmed)
        best = confirm or sweep
        return cls(
            best_chunk_size=best.configuration.chunk_size if best else None,
            best_throughput=best.throughput_items_sec if best else None,
            total_configs_tested=len(results),
            successful_configs=sum(row.status == "ok" for row in results),
            sweep=sweep,
            confirm=confirm,
            recommendation=best.configuration if best else None,
            ineligible=ineligible(results),
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


def winner(rows: Sequence[MatrixRow]) -> Winner | None:
    """Return the best of rows: most items a second within the guardrail, at equal speed the smaller chunk."""
    why = ineligible(rows)
    figures = [
        (row.configuration, row.throughput_items_sec, row.p95_total_e2e_ms)
        for row in rows
        if row.configuration.name not in why and row.throughput_items_sec and row.p95_total_e2e_ms
    ]
    if not figures:
        return None
    guardrail = GUARDRAIL_RATIO * min(p95 for _, _, p95 in figures)
    inside = [each for each in figures if each[2] <= guardrail]
    configuration, throughput, p95 = max(inside, key=lambda each: (each[1], -each[0].chunk_size))
    return Winner(configuration=configuration, throughput_items_sec=throughput, p95_total_e2e_ms=p95)


def ineligible(rows: Sequence[MatrixRow]) -> dict[str, str]:
    """Return why rows may not win, by name: a failed run, or scores unlike those of the smallest chunks."""
    good = [row for row in rows if row.status == "ok" and row.reference_scores is not None]
    reference = min(good, key=lambda row: row.configuration.chunk_size or np.inf, default=None)
    reasons = {}
    for row in rows:
        reason = _reason(row, reference)
        if reason is not None:
            reasons[row.configuration.name] = reason
    return reasons


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


def _reason(row: MatrixRow, reference: MatrixRow | None) -> str | None:
    if row.status != "ok":
        return f"success rate {row.success_rate:.2f}"
    if row.reference_scores is None or reference is None:
        return "missing_scores"
    found, expected = np.asarray(row.reference_scores), np.asarray(reference.reference_scores)
    if found.shape != expected.shape:
        return "shape_mismatch"
    difference = np.abs(found - expected)
    if difference.max() > MAX_ABS or difference.mean() > MEAN_ABS:
        largest, mean = difference.max(), difference.mean()
        return f"scores differ from those of {reference.configuration.name}: max {largest:.4f}, mean {mean:.4f}"
    return None
