"""From two commits to a verdict: sessions of pairs until it is sure, or the time is up."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from mis_bench.artifacts.parts import prepared
from mis_bench.artifacts.perf import Compared, Conditions, Figures, PerfResult, Stored, Yardstick, overall
from mis_bench.environment import checkpoint_sha256, environment
from mis_bench.perf.errors import PerfError
from mis_bench.perf.judge import judge, tail
from mis_bench.perf.paired import SIDES, Pair, Session, Start, measure
from mis_bench.perf.rules import MOST_SESSIONS, Rules, limit_of
from mis_bench.perf.side import About, Side, Turn
from mis_bench.perf.sources import Sources
from mis_bench.profiles import PROFILES, configurations
from mis_bench.workload import Workload

OPTIONS: dict[str, int | str] = {"dtype": "bfloat16", "chunked_prefill_size": 1024, "max_total_tokens": 8192}
"""Of the engine: one type on both sides, whatever their default; few shapes, so that it starts in seconds, and several
steps in the largest request."""

PAIRS = 20
"""Of every workload in a session."""

FEWEST_SESSIONS = 2
"""One pair of processes would not show how much processes differ."""

_GEOMETRY = "canonical-400-50-20"


@dataclass(frozen=True, slots=True)
class Events:
    """Whom to tell what happens.

    Attributes:
        session: A session begins, with so many turns to come.
        turn: A turn is over.
    """

    session: Callable[[int, int], None] = lambda number, turns: None
    turn: Callable[[], None] = lambda: None


def workloads(vocab_size: int | None) -> dict[str, Workload]:
    """Return what is compared: the smoke profile, one item alone among it, and the canonical geometry, smaller.

    Requests with more than two labels ask for a softmax over them, the others for probabilities of the vocabulary, so
    that both heads are measured.

    Args:
        vocab_size: Of a vocabulary that token ids must be folded into, or None.
    """
    named = {each.name: each.workload for each in configurations(PROFILES["smoke"], dtype=None, parameters=None)}
    named["canonical"] = _GEOMETRY
    return {
        name: prepared(workload, labels=labels, softmax=labels > 2, vocab_size=vocab_size)
        for name, workload in named.items()
        for labels in [int(workload.partition("@")[2] or 2)]
    }


def starter(sources: Sources, model: Path, asked: dict[str, Workload], *, worker: Path | None = None) -> Start:
    """Return what starts a worker of either side."""
    requests = {name: workload.request for name, workload in asked.items()}
    job: dict[str, Any] = {"model": str(model), "options": OPTIONS, "requests": requests}
    folders = {"base": sources.base, "head": sources.head}
    return lambda name: Side(name, folders[name], job, worker=worker)


def compare(
    sources: Sources,
    start: Start,
    asked: dict[str, Workload],
    *,
    model: Path,
    minutes: float,
    stored: Callable[[PerfResult], Stored | None] = lambda _: None,
    events: Events | None = None,
) -> PerfResult:
    """Measure and judge.

    Args:
        sources: Both sides.
        start: Starts a worker.
        asked: Workloads by name.
        model: Directory of the checkpoint.
        minutes: No session begins after so long, once there were the fewest.
        stored: Finds stored figures for a result that has none yet.
        events: Whom to tell.

    Raises:
        PerfError: a side does not run, or they cannot be compared.
    """
    where, began = environment(), time.perf_counter()
    events = events or Events()
    rules = Rules(len(asked))
    sessions: list[Session] = []
    names = list(asked)
    while len(sessions) < MOST_SESSIONS:
        number = len(sessions)
        if number >= FEWEST_SESSIONS and (
            time.perf_counter() - began > minutes * 60 or _is_settled(sessions, asked, rules)
        ):
            break
        events.session(number + 1, 2 * PAIRS * len(names))
        calls = sessions[0].calls if sessions else None
        sessions.append(measure(start, names, pairs=PAIRS, seed=number, calls=calls, on_turn=events.turn))
        _check(sessions[-1].about)
    about = sessions[0].about["head"]
    if about.platform != "cpu":
        where.hardware = about.device
    compared = [_compared(name, workload, sessions, rules, model, about) for name, workload in asked.items()]
    yardstick = np.array([seconds for session in sessions for seconds in session.yardstick_s]) * 1e3
    result = PerfResult(
        environment=where,
        base_commit=sources.base_commit,
        head_commit=sources.head_commit,
        head_is_dirty=sources.is_dirty,
        sources_are_equal=sources.are_equal,
        conditions=_conditions(where.hardware, where.python_version, model, about),
        sessions=len(sessions),
        seconds=time.perf_counter() - began,
        confidence=rules.confidence,
        yardstick=Yardstick(p50_ms=float(np.median(yardstick)), p95_ms=float(np.percentile(yardstick, 95))),
        workloads=compared,
        notes=list(_notes(sources, sessions[0].about)),
        stored=None,
        verdict=overall([each.status for each in compared], None),
    )
    result.stored = stored(result)
    result.verdict = overall([each.status for each in compared], result.stored)
    return result


def _pairs(sessions: list[Session], name: str) -> list[Pair]:
    return [pair for session in sessions for pair in session.pairs[name]]


def _is_settled(sessions: list[Session], asked: dict[str, Workload], rules: Rules) -> bool:
    """Whether the clock alone decides about every workload."""
    return all(
        judge(_pairs(sessions, name), rules, on_cpu=False, limit=limit_of(workload.num_items)).status != "unsure"
        for name, workload in asked.items()
    )


def _check(about: dict[str, About]) -> None:
    base, head = (about[side] for side in SIDES)
    for what in ("platform", "device", "dtype"):
        if getattr(base, what) != getattr(head, what):
            raise PerfError(f"The {what} differs: base {getattr(base, what)}, head {getattr(head, what)}.")
    if base.native and not head.native:
        raise PerfError("The base uses the native CPU library and the head does not, though it was compiled for both.")


def _notes(sources: Sources, about: dict[str, About]) -> Iterator[str]:
    if sources.are_equal:
        yield "Both sides have the same sources: every difference is noise."
    if sources.native is not None and about["head"].platform == "cpu":
        yield f"Neither side has the native CPU library: {sources.native}."
    if about["head"].native and not about["base"].native:
        yield "The head uses the native CPU library, and the base does not."


def _compared(
    name: str, workload: Workload, sessions: list[Session], rules: Rules, model: Path, about: About
) -> Compared:
    pairs = _pairs(sessions, name)
    base, head = (_figures(name, workload, turns, model, about.dtype) for turns in zip(*pairs, strict=True))
    judged = judge(pairs, rules, on_cpu=about.platform == "cpu", limit=limit_of(workload.num_items))
    return Compared(
        name=name,
        pairs=len(pairs),
        calls_of_turn=sessions[0].calls[name],
        judgement=judged,
        tails=[tail(pairs, percentile, may_fail=judged.is_quiet) for percentile in (95, 99)],
        base=base,
        head=head,
    )


def _figures(name: str, workload: Workload, turns: tuple[Turn, ...], model: Path, dtype: str) -> Figures:
    wall = np.array([seconds for turn in turns for seconds in turn.wall_s]) * 1e3
    p50, p95, p99 = np.percentile(wall, [50, 95, 99]).tolist()
    return Figures(
        name=name,
        batch_size=workload.num_items,
        num_labels=len(workload.label_token_ids),
        model=model.name,
        dtype=dtype,
        workload_sha256=workload.sha256,
        successful_runs=len(wall),
        throughput_ips=workload.num_items / p50 * 1e3,
        cpu_ms=float(np.median([seconds for turn in turns for seconds in turn.cpu_s])) * 1e3,
        latency_p50_ms=p50,
        latency_p95_ms=p95,
        latency_p99_ms=p99,
    )


def _conditions(hardware: str, python: str, model: Path, about: About) -> Conditions:
    versions = {"python": python.rpartition(".")[0]}
    for package in ("jax", "jaxlib", "libtpu", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return Conditions(
        hardware=hardware,
        platform=about.platform,
        model=model.name,
        model_sha256=checkpoint_sha256(model),
        dtype=about.dtype,
        native=about.native,
        versions=versions,
        options=OPTIONS,
    )
