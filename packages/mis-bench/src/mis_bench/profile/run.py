"""A scenario from beginning to end: ask without a profiler, ask under it, read the trace, add up."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from mis_bench.environment import Environment
from mis_bench.measuring.loop import DueRequest, drive
from mis_bench.profile.breakdown import TraceSums, sums_of
from mis_bench.profile.limits import KernelCounts, measure_limits
from mis_bench.profile.records import (
    MemoryReport,
    PlannedRequests,
    Point,
    Profile,
    ProfileError,
    ResidentArray,
    Timed,
)
from mis_bench.profile.scenarios import ScenarioPlan
from mis_bench.profile.trace import REQUEST, DeviceTrace, read_trace
from mis_bench.results.plan import WorkloadPart
from mis_bench.targets.target import Target
from mis_bench.workload import Workload, build_workload

if TYPE_CHECKING:
    from mis_core import Engine

_MIB = 2**20
_MOST_UNATTRIBUTED = 0.5
"""Share of the time that may belong to no stage of the model; beyond it, a profile explains too little to be one."""


class ProfiledTarget(NamedTuple):
    """What is profiled."""

    target: Target  # stays open
    timeout_s: float  # that a call may take
    vocab_size: int | None = None  # into which ids are folded
    engine: "Engine | None" = None  # behind the target, if it is in this process; `memory` needs it
    on_request: Callable[[], None] = lambda: None  # told of every request that was answered

    async def asked(self, workload: Workload, numbers: Iterable[int]) -> list[Timed]:
        """Ask requests like one, by their numbers, one after the other; raises `ProfileError`."""
        requests = [
            DueRequest(number, each.num_items, each.num_tokens, [self.target.prepare(each)])
            for number, each in enumerate(map(workload.another, numbers))
        ]
        sent, _ = await drive(
            self.target, requests, max_concurrency=1, timeout_s=self.timeout_s, on_sent=lambda _: self.on_request()
        )
        for each in sent:
            if each.error is not None:
                raise ProfileError(f"A request of {workload.name} failed ({each.error}): {each.message}")
        return [Timed(ms=(each.done_s - each.sent_s) * 1e3, stages_ms=each.stages_ms) for each in sent]

    async def memory(self, engine: "Engine", when: str, folder: Path) -> MemoryReport:
        """Describe what lies on the devices, and write JAX's own memory profile.

        Waits for the devices: latencies of the same run mean nothing.
        """
        pprof = Path("memory", f"{when}.pprof")
        (folder / pprof).parent.mkdir(parents=True, exist_ok=True)
        engine.save_memory_profile(folder / pprof)
        tensors = {
            name: ResidentArray(mib=array.bytes / _MIB, shape=list(array.shape), dtype=array.dtype)
            for name, array in engine.memory().items()
        }
        resident = (await self.target.counts())["memory_bytes"] / _MIB
        return MemoryReport(
            when=when, tensors=tensors, peak_mib=self.peak_mib(), process_mib=resident, pprof=str(pprof)
        )

    def peak_mib(self) -> float | None:
        """Return the most MiB that were in use on one device so far; None where devices do not tell."""
        known = [stats for device in jax.local_devices() if (stats := device.memory_stats())] if self.engine else []
        return max((stats["peak_bytes_in_use"] / _MIB for stats in known if "peak_bytes_in_use" in stats), default=None)


async def profile(
    plan: ScenarioPlan,
    subject: ProfiledTarget,
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
        ProfileError: a profile is under way, a request was not answered, or the trace cannot be read or explains less
            than half of the time.
    """
    built = map(build_workload, plan.workloads)
    workloads = [each.within(subject.vocab_size) if subject.vocab_size else each for each in built]
    resident = subject.engine if plan.scenario == "memory" else None
    memory = [await subject.memory(resident, "loaded", folder)] if resident else []
    timed, peaks = [], []
    for workload in workloads:
        await subject.asked(workload, [0])  # warms up; all requests differ, so that no query is cached
        timed.append(await subject.asked(workload, range(1, plan.timed + 1)))
        peaks.append(subject.peak_mib())
    memory += [await subject.memory(resident, "served", folder)] if resident else []
    profiled: list[list[Timed]] = [[] for _ in workloads]
    before = after = KernelCounts.now()
    if plan.profiled:
        with recording:
            for calls, workload in zip(profiled, workloads, strict=True):
                for number in range(plan.timed + 1, plan.timed + plan.profiled + 1):
                    with jax.profiler.TraceAnnotation(REQUEST):
                        calls += await subject.asked(workload, [number])
            after = KernelCounts.now()
    xplanes = sorted((folder / "traces").rglob("*.xplane.pb"))
    files = [*xplanes, *sorted((folder / "traces").rglob("*.trace.json.gz"))]
    trace = read_trace(xplanes[0]) if xplanes else DeviceTrace([], [])
    sums = sums_of(trace, len(workloads), plan.profiled)
    if plan.profiled:
        _check_explained(sums, folder / "traces")
    limits = None
    if plan.scenario == "kernels" and subject.engine is not None and plan.profiled:
        limits = await measure_limits(subject.target, subject.engine, workloads[0], trace, before, after)
    points = [
        Point(
            workload=WorkloadPart.of(workload),
            timed=timed[index],
            profiled=profiled[index],
            peak_mib=peaks[index],
            device=sums.points[index],
        )
        for index, workload in enumerate(workloads)
    ]
    return Profile(
        environment=environment,
        scenario=plan.scenario,
        planned=PlannedRequests(workloads=list(plan.workloads), timed=plan.timed, profiled=plan.profiled),
        target=subject.target.about,
        traces=[str(path.relative_to(folder)) for path in files],
        points=points,
        device=sums.device,
        stages=sums.stages,
        operations=sums.operations,
        host=sums.host,
        calls=sums.calls,
        limits=limits,
        memory=memory,
    )


def _check_explained(sums: TraceSums, traces: Path) -> None:
    share = sums.unattributed_share
    if share is None:
        raise ProfileError(f"No operation ran while the trace was recorded. It is in {traces}.")
    if share > _MOST_UNATTRIBUTED:
        raise ProfileError(
            f"{share:.0%} of the time belongs to no stage of the model: the trace lacks the programs that ran. "
            f"Start with an empty --compilation-cache-dir, or look at the trace in {traces}."
        )
