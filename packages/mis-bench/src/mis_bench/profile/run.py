"""A scenario from beginning to end: ask without a profiler, ask under it, read the trace, add up."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mis_bench.artifacts.parts import prepared
from mis_bench.artifacts.profile import MemoryReport, ProfileResult, TraceFiles
from mis_bench.environment import environment
from mis_bench.measure import Call, Timed, closed_loop, one_call
from mis_bench.profile.breakdown import by_layer, by_mark, by_operation, by_stage
from mis_bench.profile.filing import metadata_of
from mis_bench.profile.memory import device_memory_mb, memory_report
from mis_bench.profile.recording import ProfileError, Recording, recording_here, recording_server
from mis_bench.profile.scenarios import Plan
from mis_bench.profile.sizes import Size, device_time_of, points_of, requests_of
from mis_bench.profile.trace import REQUEST, Trace, read_trace, trace_files
from mis_bench.profile.verdicts import verdicts
from mis_bench.targets.base import BlockingTarget
from mis_bench.workload import Workload

if TYPE_CHECKING:
    from mis_core import Engine


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled.

    Attributes:
        target: Whom to ask.
        vocab_size: Size of its vocabulary, into which ids are folded; None: they are not.
        hardware: What computes; None: this machine's CPU.
        engine: The engine behind the target, if it is in this process; the scenario `memory` needs it.
        url: Of the server; None: the engine is in this process.
        admin_key: The server's key for /start_profile.
        profile_dir: The server's `--profile-dir`, if it can be read here.
    """

    target: BlockingTarget
    vocab_size: int | None = None
    hardware: str | None = None
    engine: "Engine | None" = None
    url: str | None = None
    admin_key: str | None = None
    profile_dir: Path | None = None


def profile(
    plan: Plan, subject: Subject, folder: Path, *, on_request: Callable[[], None] = lambda: None
) -> ProfileResult:
    """Run a scenario. Traces and memory profiles are written to a folder; the artifact is returned, not written.

    Args:
        plan: What to do.
        subject: What is profiled; stays open.
        folder: For the files.
        on_request: Told of every request that was answered.

    Raises:
        ProfileError: a profile is under way, or a request was not answered.
        TraceError: the trace cannot be read.
    """
    target = subject.target
    here = environment(subject.hardware)
    workloads = [prepared(name, vocab_size=subject.vocab_size) for name in plan.workloads]
    memory = _memory(plan, subject.engine, folder, "loaded")
    timed = [_timed(target, workload, plan.timed, on_request) for workload in workloads]
    memory += _memory(plan, subject.engine, folder, "served")
    profiled: list[list[Call]] = [[] for _ in workloads]
    files, trace, peak = None, Trace([], []), None
    if plan.profiled:
        with _recording(plan, subject, folder / "traces") as recording:
            for calls, workload in zip(profiled, workloads, strict=True):
                for number in range(plan.timed + 1, plan.timed + plan.profiled + 1):
                    calls.append(_marked_call(target, workload.another(number)))
                    on_request()
        files, trace = _read(recording, folder)
        peak = None if subject.engine is None else device_memory_mb()[1]
    sizes = [Size(*each) for each in zip(workloads, timed, profiled, strict=True)]
    points = points_of(sizes, trace, is_for_latency=plan.scenario != "memory")
    calls = [call for each in timed for call in each.calls] if plan.scenario != "memory" else []
    metadata = metadata_of(plan, target.about.model, here, [workload.num_items for workload in workloads])
    is_tpu, devices = "tpu" in here.hardware.lower(), metadata.hardware.device_count
    return ProfileResult(
        environment=here,
        scenario=plan.scenario,
        is_for_latency=plan.scenario != "memory",
        target=target.about,
        metadata=metadata,
        trace=files,
        points=points,
        requests=requests_of(sizes, trace, target.about.model, here.hardware, files, peak),
        device=device_time_of(trace),
        stages=by_stage(trace.operations),
        layers=by_layer(trace.operations),
        operations=by_operation(trace.operations),
        host=by_mark(trace.marks),
        memory=memory,
        verdicts=list(verdicts(points, calls, memory, is_tpu=is_tpu, devices=devices)),
    )


def _timed(target: BlockingTarget, workload: Workload, count: int, on_request: Callable[[], None]) -> Timed:
    """Ask once to warm up, then time requests that are all different."""
    _answered(closed_loop(target, [workload], on_call=lambda _: on_request()).calls)
    different = [workload.another(number) for number in range(1, count + 1)]  # made before the clock runs
    timed = closed_loop(target, different, on_call=lambda _: on_request())
    _answered(timed.calls)
    return timed


def _marked_call(target: BlockingTarget, workload: Workload) -> Call:
    import jax

    with jax.profiler.TraceAnnotation(REQUEST, items=workload.num_items, tokens=workload.num_tokens):
        call = one_call(target, workload, since=time.perf_counter())
    _answered([call])
    return call


def _answered(calls: Sequence[Call]) -> None:
    for call in calls:
        if not call.ok:
            raise ProfileError(f"A request of {call.workload.name} failed ({call.failure}): {call.message}")


def _memory(plan: Plan, engine: "Engine | None", folder: Path, stage: str) -> list[MemoryReport]:
    if plan.scenario != "memory":
        return []
    if engine is None:
        raise ProfileError(
            "The scenario memory needs the target engine: servers do not tell what lies on their devices."
        )
    return [memory_report(engine, stage, folder / "memory" / f"{stage}.pprof")]


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
        host_tracer_level=recording.host_tracer_level,
        python_tracer_level=recording.python_tracer_level,
    )
    return files, read_trace(xplanes[0]) if xplanes else Trace([], [])
