"""Measuring one configuration of a matrix."""

from collections.abc import Callable, Sequence
from typing import Literal

from mis_bench.artifacts.matrix import MatrixPlan
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow, RunRecord
from mis_bench.measure import ask_in_chunks, chunks_of, counted
from mis_bench.targets.base import BlockingTarget, Scores
from mis_bench.workload import Workload

Run = tuple[RunRecord, Scores | None]
"""A record, and the scores if every call was answered."""


def pieces(workload: Workload, plan: MatrixPlan, configuration: Configuration) -> list[Workload]:
    """Return the calls of a run: chunks of the request, or the request itself where the server cuts it."""
    size = configuration.chunk_size if plan.evaluation_view == "portable" else workload.num_items
    return chunks_of(workload, size)


def measure_configuration(
    target: BlockingTarget,
    workload: Workload,
    plan: MatrixPlan,
    configuration: Configuration,
    *,
    timed_runs: int,
    on_run: Callable[[], None] = lambda: None,
) -> MatrixRow:
    """Measure one configuration: warm-ups, then timed runs.

    A run ends at its first failure. A time-out ends the configuration: what is late still occupies the target.

    Args:
        target: Whom.
        workload: The whole request.
        plan: Warm-ups, cache and view.
        configuration: What.
        timed_runs: How many.
        on_run: Told of every finished run.
    """
    calls = pieces(workload, plan, configuration)
    records: list[RunRecord] = []
    scores: Scores | None = None
    before: dict[str, float] = {}
    phases: list[Literal["warmup", "timed"]] = [*["warmup"] * plan.warmup_runs, *["timed"] * timed_runs]
    for number, phase in enumerate(phases):
        if number == plan.warmup_runs:
            before = target.counts()
        record, found = _run(target, calls, phase, plan.cache)
        records.append(record)
        scores = scores if found is None else found
        on_run()
        if record.failure == "timeout":
            break
    return MatrixRow.of(
        configuration,
        records,
        num_items=workload.num_items,
        num_chunks=len(calls),
        hourly_cost=plan.hourly_cost,
        reference_scores=None if scores is None else scores.tolist(),
        **_counted(before, target.counts(), records),
    )


def _run(
    target: BlockingTarget, calls: Sequence[Workload], phase: Literal["warmup", "timed"], cache: Literal["cold", "warm"]
) -> Run:
    asked = ask_in_chunks(target, calls, forget=cache == "cold")
    record = RunRecord(
        phase=phase,
        total_e2e_ms=asked.seconds * 1e3,
        chunk_calls_ms=[call.latency_s * 1e3 for call in asked.calls],
        failure=asked.failure,
        message=asked.message[:300],
        cached_tokens=asked.cached_tokens,
    )
    return record, asked.scores


def _counted(before: dict[str, float], after: dict[str, float], records: Sequence[RunRecord]) -> dict[str, object]:
    """Return what the target counted in the timed runs, where it tells."""
    calls = sum(len(record.chunk_calls_ms) for record in records if record.phase == "timed")
    steps = counted(before, after, "steps")
    return {
        "timed_compilations": counted(before, after, "compilations"),
        "steps_per_call": None if steps is None or not calls else steps / calls,
    }
