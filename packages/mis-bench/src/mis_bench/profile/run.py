"""A scenario from beginning to end: ask without a profiler, ask under it, read the trace, add up."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from mis_bench.environment import Environment
from mis_bench.loop import Asked, drive
from mis_bench.profile.breakdown import by_layer, by_mark, by_operation, by_stage, device_time
from mis_bench.profile.memory import memory_report
from mis_bench.profile.recording import ProfileError, Recording, recording_here, recording_server
from mis_bench.profile.records import DeviceTime, MemoryReport, Point, Profile, Timed, TraceFiles
from mis_bench.profile.scenarios import Plan
from mis_bench.profile.trace import REQUEST, Mark, Trace, read_trace, trace_files
from mis_bench.records import WorkloadPart
from mis_bench.targets.base import Target
from mis_bench.workload import Workload, build_workload

if TYPE_CHECKING:
    from mis_core import Engine


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled.

    Attributes:
        target: Whom to ask.
        timeout_s: Seconds that a call may take.
        vocab_size: Size of its vocabulary, into which ids are folded; None: they are not.
        engine: The engine behind the target, if it is in this process; the scenario `memory` needs it.
        url: Of the server; None: the engine is in this process.
        admin_key: The server's key for /start_profile.
        profile_dir: The server's `--profile-dir`, if it can be read here.
    """

    target: Target
    timeout_s: float
    vocab_size: int | None = None
    engine: "Engine | None" = None
    url: str | None = None
    admin_key: str | None = None
    profile_dir: Path | None = None


async def profile(
    plan: Plan,
    subject: Subject,
    folder: Path,
    environment: Environment,
    *,
    on_request: Callable[[], None] = lambda: None,
) -> Profile:
    """Run a scenario. Traces and memory profiles are written to a folder; the artifact is returned, not written.

    Args:
        plan: What to do.
        subject: What is profiled; stays open.
        folder: For the files.
        environment: Where, with the hardware that computes.
        on_request: Told of every request that was answered.

    Raises:
        ProfileError: a profile is under way, or a request was not answered.
        TraceError: the trace cannot be read.
    """
    size = subject.vocab_size
    workloads = [
        built if size is None else built.within(size) for built in (build_workload(name) for name in plan.workloads)
    ]
    memory = _memory(plan, subject.engine, folder, "loaded")
    timed = []
    for workload in workloads:
        # Once to warm up; the requests that count are all different, so that no query is cached.
        first, *others = [workload.another(number) for number in range(plan.timed + 1)]
        await _asked(subject, [first], on_request)
        timed.append(await _asked(subject, others, on_request))
    memory += _memory(plan, subject.engine, folder, "served")
    profiled: list[list[Timed]] = [[] for _ in workloads]
    files, trace = None, Trace([], [])
    if plan.profiled:
        with _recording(plan, subject, folder / "traces") as recording:
            for calls, workload in zip(profiled, workloads, strict=True):
                for number in range(plan.timed + 1, plan.timed + plan.profiled + 1):
                    with jax.profiler.TraceAnnotation(REQUEST, items=workload.num_items, tokens=workload.num_tokens):
                        calls += await _asked(subject, [workload.another(number)], on_request)
        files, trace = _read(recording, folder)
    marks = [mark for mark in trace.marks if mark.name == REQUEST]
    firsts = [marks[number * plan.profiled] if marks else None for number in range(len(workloads))]
    return Profile(
        environment=environment,
        scenario=plan.scenario,
        target=subject.target.about,
        trace=files,
        points=[_point(*each, trace) for each in zip(workloads, timed, profiled, firsts, strict=True)],
        device=_device_time(trace, marks),
        stages=by_stage(trace.operations),
        layers=by_layer(trace.operations),
        operations=by_operation(trace.operations),
        host=by_mark(trace.marks),
        memory=memory,
    )


async def _asked(subject: Subject, workloads: Sequence[Workload], on_request: Callable[[], None]) -> list[Timed]:
    """Ask one request after the other."""
    requests = [
        Asked(number, each.num_items, each.num_tokens, [subject.target.prepare(each)])
        for number, each in enumerate(workloads)
    ]
    sent, _ = await drive(
        subject.target, requests, max_concurrency=1, timeout_s=subject.timeout_s, on_sent=lambda _: on_request()
    )
    for each, workload in zip(sent, workloads, strict=True):
        if each.error is not None:
            raise ProfileError(f"A request of {workload.name} failed ({each.error}): {each.message}")
    return [Timed(ms=(each.done_s - each.sent_s) * 1e3, stages_ms=each.stages_ms) for each in sent]


def _point(workload: Workload, timed: list[Timed], profiled: list[Timed], mark: Mark | None, trace: Trace) -> Point:
    span = (mark.begin_ns, mark.end_ns) if mark else None
    return Point(
        workload=WorkloadPart.of(workload),
        timed=timed,
        profiled=profiled,
        device=device_time(trace, *span) if span else None,
        stages=by_stage(trace.within(*span).operations) if span else [],
    )


def _device_time(trace: Trace, marks: Sequence[Mark]) -> DeviceTime | None:
    """Split the time of all profiled requests; None of an empty trace.

    Between marked requests nothing is asked, so only they count. A server's trace has no such marks: there it is
    the time from the first operation to the last.
    """
    if not trace.operations:
        return None
    spans = [(mark.begin_ns, mark.end_ns) for mark in marks] or [
        (trace.operations[0].begin_ns, max(each.end_ns for each in trace.operations))
    ]
    times = [device_time(trace, *span) for span in spans]
    return DeviceTime(wall_ms=sum(time.wall_ms for time in times), busy_ms=sum(time.busy_ms for time in times))


def _memory(plan: Plan, engine: "Engine | None", folder: Path, when: str) -> list[MemoryReport]:
    if plan.scenario != "memory":
        return []
    if engine is None:
        raise ProfileError(
            "The scenario memory needs the target engine: servers do not tell what lies on their devices."
        )
    return [memory_report(engine, when, folder / "memory" / f"{when}.pprof")]


def _recording(plan: Plan, subject: Subject, folder: Path) -> contextlib.AbstractContextManager[Recording]:
    if subject.url is None:
        return recording_here(folder, python_calls=plan.python_calls)
    return recording_server(folder, subject.url, key=subject.admin_key, profile_dir=subject.profile_dir)


def _read(recording: Recording, folder: Path) -> tuple[TraceFiles, Trace]:
    xplanes, perfetto = trace_files(recording.folder) if recording.is_here else ([], [])
    files = TraceFiles(
        xplane=[str(path.relative_to(folder)) for path in xplanes],
        perfetto=[str(path.relative_to(folder)) for path in perfetto],
        server_folder=recording.server_folder,
        python_calls=recording.python_calls,
    )
    return files, read_trace(xplanes[0]) if xplanes else Trace([], [])
