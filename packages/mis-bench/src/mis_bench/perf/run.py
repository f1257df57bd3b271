"""Carry a comparison out."""

import os
import shlex
import sys
from pathlib import Path

from mis_bench.execution import Progress, execute
from mis_bench.perf.preset import OPTIONS, PAIRS, SIDES, plan_of
from mis_bench.perf.side import WORKER, SideOpener
from mis_bench.perf.sources import PerfError, Sources
from mis_bench.records import Results


def compare(
    sources: Sources,
    model: Path,
    vocab_size: int | None,
    folder: Path,
    *,
    sessions: int,
    pairs: int = PAIRS,
    worker: Path = WORKER,
    on_progress: Progress = lambda *_: None,
) -> Results:
    """Measure both sides.

    Args:
        sources: Both sides.
        model: Directory of the checkpoint.
        vocab_size: Of a vocabulary that token ids must be folded into, or None.
        folder: For plan and records.
        sessions: Pairs of processes.
        pairs: Turns of each side at each workload, in a session.
        worker: Program that speaks the protocol of `perf/worker.py`.
        on_progress: Told what is done.

    Raises:
        PerfError: they cannot be compared.
        TargetUnavailable: a side does not start.
    """
    platform = os.environ.get("JAX_PLATFORMS", "").partition(",")[0] or "cpu"
    plan = plan_of(
        sources, model, vocab_size, sessions=sessions, pairs=pairs, platform=platform, command=shlex.join(sys.argv[1:])
    )
    openers = {
        side: SideOpener(side, folder, model, OPTIONS, worker)
        for side, folder in zip(SIDES, (sources.base, sources.head), strict=True)
    }
    results = execute(plan, openers, folder, on_progress=on_progress)
    about = {each.target: each.about for each in results.opened if each.about is not None}
    for what in ("devices", "dtype", "native"):
        base, head = (about[side].options.get(what, about[side].dtype) for side in SIDES)
        if base != head and not (what == "native" and head):
            raise PerfError(f"The {what} differs: base {base}, head {head}.")
    return results
