"""Matrices with figures of one's choice, for tests of what reads them."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Literal

import numpy as np

from mis_bench.artifacts.matrix import MatrixSummary, ScoreMatrix
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow, RunRecord
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.environment import environment
from mis_bench.targets.base import About
from mis_bench.workload import build_workload

HERE = environment()
SCORES = np.array([[0.2, 0.6], [0.1, 0.3], [0.5, 0.5], [0.01, 0.03]])


def matrix(
    target: str,
    milliseconds: Mapping[int, float],
    *,
    view: Literal["portable", "best_native"] = "portable",
    workload: str = "probe-5-4-3",
    softmax: bool = False,
    scores: np.ndarray = SCORES,
    hourly_cost: float | None = None,
    confirmed: Mapping[int, float] | None = None,
    hardware: str = "one chip",
) -> ScoreMatrix:
    """A matrix whose runs of each chunk size all take the same time; a time below 0 is a failure."""
    part = WorkloadPart.of(dataclasses.replace(build_workload(workload), apply_softmax=softmax))

    def row(size: int, run_ms: float) -> MatrixRow:
        chunks = -(-4 // size) if view == "portable" else 1
        failure = "timeout" if run_ms < 0 else None
        timed = RunRecord(
            phase="timed",
            total_e2e_ms=abs(run_ms),
            chunk_calls_ms=[] if failure else [run_ms / chunks] * chunks,
            failure=failure,
        )
        return MatrixRow.of(
            Configuration(chunk_size=size),
            [timed.model_copy(update={"phase": "warmup"}), timed, timed],
            num_items=4,
            num_chunks=chunks,
            hourly_cost=hourly_cost,
            reference_scores=None if failure else scores.tolist(),
        )

    rows = [row(*each) for each in milliseconds.items()]
    confirm_rows = [row(*each) for each in (confirmed or {}).items()]
    made = ScoreMatrix(
        environment=HERE.model_copy(update={"hardware": hardware}),
        run_id="r",
        finished=datetime.datetime.now(datetime.UTC),
        target=About(name=target, backend=target, model="m", dtype="bfloat16"),
        evaluation_view=view,
        workload=part,
        total_runtime_seconds=100,
        results=rows,
        confirm_results=confirm_rows,
        summary=MatrixSummary.of(rows, confirm_rows),
    )
    assert not [fault for fault in made.inconsistencies() if "workload" not in fault]
    return made
