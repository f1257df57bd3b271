"""What `profile` writes: raw times of requests, and sums over the trace that lies beside them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from mis_bench.artifact import Artifact, Part
from mis_bench.environment import Environment
from mis_bench.manifest import seal
from mis_bench.results.plan import WorkloadPart
from mis_bench.results.statistics import Latency
from mis_bench.targets.target import About, TargetUnavailable

PROFILE = "profile.json"

Scenario = Literal["end-to-end", "single", "batch-scaling", "memory", "kernels"]


class ProfileError(TargetUnavailable):
    """A target cannot be profiled, or its trace cannot be read; one sentence says why and what would help."""


class Slice(Part):
    """Time of a part of the operations, summed from each one's beginning to its end: those that run at once all count.

    `name` is a stage, an operation, or a span that the host marked, `mis.wait` for instance.
    """

    name: str
    ms: float = Field(ge=0)
    count: int = Field(ge=1)


class OperationTime(Slice):
    """Time of one operation of a compiled program, summed over its runs."""

    program: str
    kind: str = Field(description="Opcode; `custom-call` is a kernel. Empty if the trace does not have it.")
    stage: str
    scope: str


class DeviceTime(Part):
    """How much of the clock some operation ran, on average over devices. On a CPU, device and host are one chip."""

    wall_ms: float = Field(ge=0)
    busy_ms: float = Field(ge=0)

    @property
    def busy_share(self) -> float:
        """Busy part of the clock."""
        return self.busy_ms / self.wall_ms


class CallCount(Part):
    """How often a function of the native library, or a copy or conversion by XLA, ran in a trace."""

    name: str = Field(description="Of the function; `copy` and its instruction's name of a copy.")
    stage: str
    count: int = Field(ge=1)
    bytes: int = Field(ge=0, description="Of all results together.")
    bytes_read: int | None = Field(
        default=None,
        ge=0,
        description="Of all operands together: one layer of the weights, no pages. Null before mis-profile-v5.",
    )


class ClockPart(Part):
    """Where a part of the clock of profiled requests went, and how long it would take at its own limit."""

    name: str = Field(description="`products`, `attention`, `head`, `norms and RoPE`, `copies and the rest` or `gaps`.")
    seconds: float = Field(ge=0)
    work: float = Field(ge=0, description="Least floating-point operations; of norms and RoPE bytes. 0: none.")
    limit_s: float = Field(ge=0, description="Seconds that the work takes at the rate measured beside it.")


class ClockLimits(Part):
    """The clock of the profiled requests beside limits that were measured right after them, on the same threads."""

    parts: list[ClockPart] = Field(min_length=1)
    product_rates: dict[str, float] = Field(description="Most operations a second of products, by who multiplied.")
    bytes_per_s: float = Field(gt=0, description="Most bytes of memory a second, read and written.")
    minor_faults: int = Field(ge=0, description="Page faults of the process without a disk.")
    major_faults: int = Field(ge=0)
    system_s: float = Field(ge=0, description="Seconds of all threads in the kernel, page faults among them.")


class Timed(Part):
    """One request: by the clock, and where the target says it went."""

    ms: float = Field(ge=0)
    stages_ms: dict[str, float]


class Point(Part):
    """Requests of one workload: timed ones without the profiler, then profiled ones, which are slower."""

    workload: WorkloadPart
    timed: list[Timed]
    profiled: list[Timed]
    peak_mib: float | None = Field(default=None, description="Peak of the fullest device so far. Null on CPUs.")
    device: DeviceTime | None = Field(default=None, description="Device time of the profiled requests.")

    @property
    def latency(self) -> Latency | None:
        """Of timed requests."""
        return Latency.of([call.ms for call in self.timed])

    @property
    def items_per_second(self) -> float | None:
        """Of timed requests, one after the other."""
        total = sum(call.ms for call in self.timed)
        return len(self.timed) * self.workload.num_items / total * 1e3 if total else None


class ResidentArray(Part):
    """An array that stays on the devices."""

    mib: float = Field(ge=0)
    shape: list[int]
    dtype: str


class MemoryReport(Part):
    """What lay on the devices at one time, in MiB, all devices together."""

    when: str = Field(description="`loaded` or `served`.")
    tensors: dict[str, ResidentArray] = Field(min_length=1)
    peak_mib: float | None = Field(ge=0, description="Peak of the fullest device so far. Null on CPUs.")
    process_mib: float = Field(ge=0, description="Resident memory of this process.")
    pprof: str = Field(description="Path of the device memory profile next to the artifact, for pprof.")


class PlannedRequests(Part):
    """What a scenario was to ask."""

    workloads: list[str] = Field(min_length=1)
    timed: int = Field(ge=0, description="Requests of each workload without a profiler.")
    profiled: int = Field(ge=0, description="Requests of each workload under the profiler, after the timed ones.")


class Profile(Artifact, schema="mis-profile-v5", older=("mis-profile-v4", "mis-profile-v3", "mis-profile-v2")):
    """`profile.json`."""

    environment: Environment
    scenario: Scenario
    planned: PlannedRequests | None = None
    target: About
    traces: list[str] = Field(
        description="Paths next to the artifact: *.xplane.pb for XProf, *.trace.json.gz for Perfetto."
    )
    points: list[Point] = Field(description="One point for each workload. Times of a memory run are not latencies.")
    device: DeviceTime | None = Field(description="Device time of all profiled requests together.")
    stages: list[Slice]
    operations: list[OperationTime]
    host: list[Slice]
    calls: list[CallCount] = Field(default=[], description="Of the native library, and copies by XLA.")
    limits: ClockLimits | None = Field(default=None, description="Of `kernels` by our engine here on a CPU.")
    memory: list[MemoryReport]

    @property
    def files(self) -> list[str]:
        """Files that it names, below its folder."""
        return [*self.traces, *(report.pprof for report in self.memory)]

    def keep(self, folder: Path) -> None:
        """Write it beside its traces, and the folder's manifest; raises `OSError`."""
        self.write(folder / PROFILE)
        seal(folder, "profile", [PROFILE, *self.files])

    def share(self, part: Slice) -> float:
        """Return a part's share of the time of all operations."""
        return part.ms / sum(stage.ms for stage in self.stages)


class Verdict(NamedTuple):
    """A figure beside its target and its alert, which are for one TPU chip."""

    metric: str
    value: float
    unit: str
    target: float
    alert: float
    verdict: Literal["met", "missed", "alert", "not judged"]


def verdicts(profile: Profile) -> Iterator[Verdict]:
    """Yield every figure that has a target and was measured; only those of TPUs are judged."""
    is_tpu = "tpu" in profile.environment.hardware.lower()
    for metric, value, unit, target, alert in _judged(profile):
        sign = 1 if target < alert else -1  # what should be high has its alert below its target
        verdict = "met" if sign * value < sign * target else "alert" if sign * value > sign * alert else "missed"
        yield Verdict(metric, value, unit, target, alert, verdict if is_tpu else "not judged")


def _judged(profile: Profile) -> Iterator[tuple[str, float, str, float, float]]:
    points = profile.points if profile.scenario != "memory" else []
    for point in points:
        items, latency, speed = point.workload.num_items, point.latency, point.items_per_second
        if latency and items == 1:
            yield "single item, p50", latency.p50_ms, "ms", 20, 50
            yield "single item, p99", latency.p99_ms, "ms", 50, 150
        if speed and items == 8:
            yield "batch of 8", speed, "items/s", 200, 100
        if speed and items == 32:
            yield "batch of 32", speed, "items/s", 500, 250
    for metric, stage, target, alert in (("tokenization", "tokenize", 5, 15), ("softmax", "finish", 1, 5)):
        told = [call for point in points for call in point.timed if stage in call.stages_ms]
        if told:
            share = sum(call.stages_ms[stage] for call in told) / sum(call.ms for call in told)
            yield f"share of {metric}", 100 * share, "%", target, alert
    peaks = [point.peak_mib for point in profile.points if point.peak_mib is not None]
    if peaks:
        yield "peak memory, models of 1B", max(peaks) / 1024, "GiB", 8, 12
