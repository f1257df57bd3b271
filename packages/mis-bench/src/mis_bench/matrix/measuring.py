"""Measuring one configuration of a matrix."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from mis_bench.artifacts.matrix import MatrixPlan
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow, RunRecord
from mis_bench.measure import counted, one_call
from mis_bench.targets.base import CallFailed, Reply, Scores, Target
from mis_bench.workload import Workload

Run = tuple[RunRecord, Scores | None]
"""A record, and the scores if every call was answered."""


def pieces(workload: Workload, plan: MatrixPlan, configuration: Configuration) -> list[Workload]:
    """Return the calls of a run: chunks of the request, or the request itself where the server cuts it."""
    size = configuration.chunk_size if plan.evaluation_view == "portable" else workload.num_items
    starts = range(0, workload.num_items, size)
    return [replace(workload, items=workload.items[start : start + size]) for start in starts]


def measure_configuration(
    target: Target,
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
    target: Target, calls: Sequence[Workload], phase: Literal["warmup", "timed"], cache: Literal["cold", "warm"]
) -> Run:
    try:
        if cache == "cold":
            target.forget()
    except CallFailed as error:
        message = str(error)[:300]
        return RunRecord(phase=phase, total_e2e_ms=0, chunk_calls_ms=[], failure=error.reason, message=message), None
    replies: list[Reply] = []
    milliseconds = []
    failure: tuple[str, str] | None = None
    began = time.perf_counter()
    for workload in calls:
        call = one_call(target, workload, since=began)
        milliseconds.append(call.latency_s * 1e3)
        if call.reply is None:
            failure = (call.failure or "error", call.message[:300])
            break
        replies.append(call.reply)
    total = (time.perf_counter() - began) * 1e3
    reason, message = failure or (None, "")
    record = RunRecord(
        phase=phase,
        total_e2e_ms=total,
        chunk_calls_ms=milliseconds,
        failure=reason,
        message=message,
        cached_tokens=replies[0].cached_tokens if replies else None,
    )
    return record, None if failure else np.concatenate([reply.scores for reply in replies])


def _counted(before: dict[str, float], after: dict[str, float], records: Sequence[RunRecord]) -> dict[str, object]:
    """Return what the target counted in the timed runs, where it tells."""
    calls = sum(len(record.chunk_calls_ms) for record in records if record.phase == "timed")
    steps = counted(before, after, "steps")
    return {
        "timed_compilations": counted(before, after, "compilations"),
        "steps_per_call": None if steps is None or not calls else steps / calls,
    }
