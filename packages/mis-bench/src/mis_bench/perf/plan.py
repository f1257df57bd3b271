"""What both sides are asked, and in which turns."""

import datetime
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from mis_bench.environment import environment
from mis_bench.options import identity
from mis_bench.perf.sources import SIDES, PerfSources
from mis_bench.results.plan import Case, LoadLevel, Plan, PlannedTarget, WorkloadPart
from mis_bench.workload import build_workload

OPTIONS: dict[str, int | str] = {"dtype": "bfloat16", "chunked_prefill_size": 1024, "max_total_tokens": 8192}
"""Of the engine: one type on both sides, whatever their default; few shapes, so that it starts in seconds, and several
steps in the largest request."""

PAIRS = 20
"""Rounds of a session: in each, both sides take a turn at every workload."""

CALLS = 3
"""Of a turn, so that the change of processes weighs little; two sessions have the 100 calls that p95 needs."""

WORKLOADS = {f"batch-{items}-labels-{labels}": f"profile{labels}-128-{items}-20@{labels}"
             for labels in (2, 4) for items in (1, 4, 16)} | {"canonical": "canonical-400-50-20"}  # fmt: skip
"""What is compared: the smoke profile, one item alone among it, and the canonical geometry, smaller."""


def plan_of(sources: PerfSources, model: Path, vocab_size: int | None, sessions: int) -> Plan:
    """Plan a comparison.

    A session is a repetition, with both processes started anew: a process's place in memory alone moves its speed.
    Turns are AB BA AB BA, which cancels whatever drifts evenly and whatever going second is worth. An accelerator has
    room for one process at a time: there each side makes all its turns before the other one starts.

    Args:
        sources: Both sides.
        model: Directory of the checkpoint.
        vocab_size: Of a vocabulary that token ids must be folded into, or None.
        sessions: Pairs of processes.
    """
    now = datetime.datetime.now(datetime.UTC)
    is_on_cpu = os.environ.get("JAX_PLATFORMS", "").partition(",")[0] in ("", "cpu")
    return Plan(
        run_id=identity(now, "perf"),
        preset="perf",
        command=shlex.join(["mis-bench", *sys.argv[1:]]),
        started=now,
        environment=environment(),
        targets=[
            PlannedTarget(
                name=side,
                spec=f"engine of {commit}",
                options={name: str(value) for name, value in OPTIONS.items()},
                model=str(model),
                group=0 if is_on_cpu else number,
            )
            for number, (side, commit) in enumerate(sources.commits.items())
        ],
        cases=[
            Case(
                name=f"{name} {side}", target=side, workload=_part(spelling, vocab_size), load=LoadLevel(requests=CALLS)
            )
            for name, spelling in WORKLOADS.items()
            for side in SIDES
        ],
        rounds=PAIRS,
        repeat=sessions,
        reference="base",
        notes=["Both sides have the same sources: every difference is noise."] if sources.are_equal else [],
    )


def _part(name: str, vocab_size: int | None) -> WorkloadPart:
    """Describe a workload; more than two labels ask for a softmax over them, so that both heads are measured."""
    workload = build_workload(name).within(vocab_size)
    return WorkloadPart.of(replace(workload, apply_softmax=len(workload.label_token_ids) > 2))
