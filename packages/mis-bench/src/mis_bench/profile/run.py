"""A scenario from beginning to end: ask without a profiler, ask under it, read the trace, add up."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from mis_bench.environment import Environment
from mis_bench.loop import Asked, drive
from mis_bench.profile.breakdown import by_mark, by_operation, by_stage, device_time
from mis_bench.profile.records import MemoryReport, Point, Profile, ProfileError, Tensor, Timed
from mis_bench.profile.scenarios import Plan
from mis_bench.profile.trace import REQUEST, Mark, Trace, read_trace
from mis_bench.records import WorkloadPart
from mis_bench.targets.base import Target
from mis_bench.workload import Workload, build_workload

if TYPE_CHECKING:
    from mis_core import Engine

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled.

    Attributes:
        target: Whom to ask; stays open.
        timeout_s: Seconds that a call may take.
        vocab_size: Size of its vocabulary, into which ids are folded; None: they are not.
        engine: The engine behind the target, if it is in this process; the scenario `memory` needs it.
        on_request: Told of every request that was answered.
    """

    target: Target
    timeout_s: float
    vocab_size: int | None = None
    engine: "Engine | None" = None
    on_request: Callable[[], None] = lambda: None

    def workload(self, name: str) -> Workload:
        """Build a workload within the target's vocabulary."""
        built = build_workload(name)
        return built if self.vocab_size is None else built.within(self.vocab_size)

    async def asked(self, workload: Workload, numbers: Iterable[int]) -> list[Timed]:
        """Ask requests like one, by their numbers, one after the other; raises `ProfileError`."""
        others = [workload.another(number) for number in numbers]
        requests = [
            Asked(number, each.num_items, each.num_tokens, [self.target.prepare(each)])
            for number, each in enumerate(others)
        ]
        sent, _ = await drive(
            self.target, requests, max_concurrency=1, timeout_s=self.timeout_s, on_sent=lambda _: self.on_request()
        )
        for each in sent:
            if each.error is not None:
                raise ProfileError(f"A request of {workload.name} failed ({each.error}): {each.message}")
        return [Timed(ms=(each.done_s - each.sent_s) * 1e3, stages_ms=each.stages_ms) for each in sent]

    async def memory(self, when: str, folder: Path) -> list[MemoryReport]:
        """Describe what lies on the devices, and write JAX's own memory profile; of an engine here only.

        Waits for the devices: latencies of the same run mean nothing.
        """
        if self.engine is None:
            return []
        (folder / "memory").mkdir(parents=True, exist_ok=True)
        self.engine.save_memory_profile(folder / "memory" / f"{when}.pprof")
        return [
            MemoryReport(
                when=when,
                tensors={
                    name: Tensor(mib=array.bytes / _MIB, shape=list(array.shape), dtype=array.dtype)
                    for name, array in self.engine.memory().items()
                },
                peak_mib=self.peak_mib(),
                process_mib=(await self.target.counts())["memory_bytes"] / _MIB,
                pprof=f"memory/{when}.pprof",
            )
        ]

    def peak_mib(self) -> float | None:
        """Return the most MiB that were in use on one device so far; None where devices do not tell."""
        known = [stats for device in jax.local_devices() if (stats := device.memory_stats())] if self.engine else []
        return max((stats["peak_bytes_in_use"] / _MIB for stats in known if "peak_bytes_in_use" in stats), default=None)


async def profile(
    plan: Plan,
    subject: Subject,
    recording: AbstractContextManager[None],
    folder: Path,
    environment: Environment,
) -> Profile:
    """Run a scenario. Traces and memory profiles are written to a folder; the artifact is returned, not written.

    Args:
        plan: What to do.
        subject: What is profiled.
        recording: Records a trace into `traces` of the folder.
        folder: For the files.
        environment: Where, with the hardware that computes.

    Raises:
        ProfileError: a profile is under way, a request was not answered, or the trace cannot be read.
    """
    workloads = [subject.workload(name) for name in plan.workloads]
    memory = await subject.memory("loaded", folder) if plan.scenario == "memory" else []
    timed, peaks = [], []
    for workload in workloads:
        await subject.asked(workload, [0])  # warms up; all requests differ, so that no query is cached
        timed.append(await subject.asked(workload, range(1, plan.timed + 1)))
        peaks.append(subject.peak_mib())
    memory += await subject.memory("served", folder) if plan.scenario == "memory" else []
    profiled: list[list[Timed]] = [[] for _ in workloads]
    if plan.profiled:
        with recording:
            for calls, workload in zip(profiled, workloads, strict=True):
                for number in range(plan.timed + 1, plan.timed + plan.profiled + 1):
                    with jax.profiler.TraceAnnotation(REQUEST):
                        calls += await subject.asked(workload, [number])
    xplanes = sorted((folder / "traces").rglob("*.xplane.pb"))
    files = [*xplanes, *sorted((folder / "traces").rglob("*.trace.json.gz"))]
    trace = read_trace(xplanes[0]) if xplanes else Trace([], [])
    marks = [mark for mark in trace.marks if mark.name == REQUEST]  # a server's trace has none
    measured = zip(workloads, timed, profiled, peaks, strict=True)
    points = [
        Point(workload=WorkloadPart.of(workload), timed=calls, profiled=slower, peak_mib=peak)
        for workload, calls, slower, peak in measured
    ]
    if marks:
        points = [_split(point, marks[n * plan.profiled :][: plan.profiled], trace) for n, point in enumerate(points)]
    return Profile(
        environment=environment,
        scenario=plan.scenario,
        target=subject.target.about,
        traces=[str(path.relative_to(folder)) for path in files],
        points=points,
        device=device_time(trace.operations, marks),
        stages=by_stage(trace.operations),
        operations=by_operation(trace.operations),
        host=by_mark(trace.marks),
        memory=memory,
    )


def _split(point: Point, marks: Sequence[Mark], trace: Trace) -> Point:
    """Return a point with what its profiled requests' part of the trace adds up to."""
    mine = [each for each in trace.operations if marks[0].begin_ns <= each.begin_ns < marks[-1].end_ns]
    return point.model_copy(update={"device": device_time(mine, marks), "stages": by_stage(mine)})
