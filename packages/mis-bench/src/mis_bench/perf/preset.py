"""The plan of a comparison: what both sides are asked, in which turns."""

import datetime
from dataclasses import replace
from pathlib import Path

from mis_bench.environment import environment
from mis_bench.perf.sources import Sources
from mis_bench.records import Case, Load, Plan, PlannedTarget, WorkloadPart
from mis_bench.workload import build_workload

OPTIONS: dict[str, int | str] = {"dtype": "bfloat16", "chunked_prefill_size": 1024, "max_total_tokens": 8192}
"""Of the engine: one type on both sides, whatever their default; few shapes, so that it starts in seconds, and several
steps in the largest request."""

SIDES = ("base", "head")

PAIRS = 20
"""Rounds of a session: in each, both sides take a turn at every workload."""

CALLS = 3
"""Of a turn, so that the change of processes weighs little; two sessions have the 100 calls that p95 needs."""

_GEOMETRY = "canonical-400-50-20"


def plan_of(
    sources: Sources, model: Path, vocab_size: int | None, *, sessions: int, pairs: int, platform: str, command: str
) -> Plan:
    """Plan a comparison.

    A session is a repetition, with both processes started anew: a process's place in memory alone moves its speed.
    Turns are AB BA AB BA, which cancels whatever drifts evenly and whatever going second is worth. An accelerator has
    room for one process at a time: there each side makes all its turns before the other one starts.

    Args:
        sources: Both sides.
        model: Directory of the checkpoint.
        vocab_size: Of a vocabulary that token ids must be folded into, or None.
        sessions: Pairs of processes.
        pairs: Rounds of a session.
        platform: What computes: `cpu`, or an accelerator.
        command: For the record.
    """
    now = datetime.datetime.now(datetime.UTC)
    return Plan(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-perf",
        preset="perf",
        command=command,
        started=now,
        environment=environment(),
        targets=[
            PlannedTarget(
                name=side,
                spec=f"engine of {commit}",
                options={name: str(value) for name, value in OPTIONS.items()},
                model=str(model),
                group=0 if platform == "cpu" else number,
            )
            for number, (side, commit) in enumerate(zip(SIDES, _commits(sources), strict=True))
        ],
        cases=[
            Case(name=f"{name} {side}", target=side, workload=part, load=Load(requests=CALLS))
            for name, part in _workloads(vocab_size).items()
            for side in SIDES
        ],
        rounds=pairs,
        repeat=sessions,
        reference="base",
        notes=list(_notes(sources)),
    )


def _workloads(vocab_size: int | None) -> dict[str, WorkloadPart]:
    """Return what is compared: the smoke profile, one item alone among it, and the canonical geometry, smaller.

    Requests with more than two labels ask for a softmax over them, the others for probabilities of the vocabulary, so
    that both heads are measured.
    """
    sizes = {f"batch-{items}-labels-{labels}": (labels, items) for labels in (2, 4) for items in (1, 4, 16)}
    names = {name: f"profile{labels}-128-{items}-20@{labels}" for name, (labels, items) in sizes.items()}
    found = {}
    for name, workload_name in (names | {"canonical": _GEOMETRY}).items():
        workload = build_workload(workload_name)
        workload = replace(workload, apply_softmax=len(workload.label_token_ids) > 2)
        found[name] = WorkloadPart.of(workload if vocab_size is None else workload.within(vocab_size))
    return found


def _commits(sources: Sources) -> tuple[str, str]:
    return sources.base_commit, sources.head_commit + (" with changes" if sources.is_dirty else "")


def _notes(sources: Sources) -> list[str]:
    notes = ["Both sides have the same sources: every difference is noise."] if sources.are_equal else []
    if sources.native is not None:
        notes.append(f"Neither side has the native CPU library: {sources.native}.")
    return notes
