"""What `profile` writes: raw times of requests, and sums over the trace that lies beside them."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from mis_bench.artifact import Artifact, Part
from mis_bench.environment import Environment
from mis_bench.records import WorkloadPart
from mis_bench.statistics import Latency
from mis_bench.targets.base import About

Scenario = Literal["end-to-end", "single", "batch-scaling", "memory", "kernels"]


class TraceFiles(Part):
    """A trace, and how it was recorded. Paths are relative to the folder."""

    xplane: list[str] = Field(description="For XProf; empty if the trace lies on the server's machine.")
    perfetto: list[str] = Field(description="For Perfetto: https://ui.perfetto.dev.")
    server_folder: str | None = Field(default=None, description="Folder under the server's --profile-dir.")
    python_calls: bool = Field(description="Whether the trace has every Python call.")


class Slice(Part):
    """Time of a part of the operations, summed from each one's beginning to its end: those that run at once all count.

    `name` is a stage, a layer (counted from 0; `unknown`: in one, but the trace does not tell which), or a span that
    the host marked, `mis.wait` for instance.
    """

    name: str
    ms: float = Field(ge=0)
    share: float | None = Field(ge=0, le=1, description="Of the time of all operations; null of the host's spans.")
    count: int = Field(ge=1)


class OperationTime(Part):
    """Time of one operation of a compiled program, summed over its runs."""

    operation: str
    program: str
    kind: str = Field(description="Opcode; `custom-call` is a kernel. Empty if the trace does not tell.")
    stage: str
    scope: str
    runs: int = Field(ge=1)
    ms: float = Field(ge=0)
    share: float = Field(ge=0, le=1, description="Of the time of all operations.")


class DeviceTime(Part):
    """How much of the clock some operation ran, on average over devices. On a CPU, device and host are one chip."""

    wall_ms: float = Field(ge=0)
    busy_ms: float = Field(ge=0)

    @property
    def idle_ms(self) -> float:
        """The host's alone: nothing ran."""
        return self.wall_ms - self.busy_ms

    @property
    def busy_share(self) -> float:
        """Busy part of the clock."""
        return min(1.0, self.busy_ms / self.wall_ms) if self.wall_ms else 0.0


class Timed(Part):
    """One request: by the clock, and where the target says it went."""

    ms: float = Field(ge=0)
    stages_ms: dict[str, float]


class Point(Part):
    """Requests of one workload: timed ones without the profiler, then profiled ones, which are slower."""

    workload: WorkloadPart
    timed: list[Timed]
    profiled: list[Timed]
    device: DeviceTime | None = Field(default=None, description="Of the first profiled request.")
    stages: list[Slice] = Field(default=[], description="Likewise.")

    @property
    def latency(self) -> Latency | None:
        """Of timed requests."""
        return Latency.of([call.ms for call in self.timed])

    @property
    def items_per_second(self) -> float | None:
        """Of timed requests, one after the other."""
        total = sum(call.ms for call in self.timed)
        return len(self.timed) * self.workload.num_items / total * 1e3 if total else None


class Tensor(Part):
    """An array that stays on the devices."""

    mib: float = Field(ge=0)
    shape: list[int]
    dtype: str


class MemoryReport(Part):
    """What lay on the devices at one time, in MiB, all devices together."""

    when: str = Field(description="`loaded` or `served`.")
    tensors: dict[str, Tensor] = Field(min_length=1)
    in_use_mib: float | None = Field(ge=0, description="As the devices say; null on CPUs.")
    peak_mib: float | None = Field(ge=0, description="Highest so far; null on CPUs.")
    process_mib: float = Field(ge=0, description="Resident memory of this process.")
    pprof: str = Field(description="Device memory profile beside the artifact, for pprof.")


class Profile(Artifact, schema="mis-profile-v2"):
    """`profile.json`."""

    environment: Environment
    scenario: Scenario
    target: About
    trace: TraceFiles | None
    points: list[Point] = Field(description="One for each workload. Times of a memory run are no latencies.")
    device: DeviceTime | None = Field(description="Of all profiled requests together.")
    stages: list[Slice]
    layers: list[Slice]
    operations: list[OperationTime]
    host: list[Slice]
    memory: list[MemoryReport]

    @property
    def is_for_latency(self) -> bool:
        """False of memory runs, which wait for the devices."""
        return self.scenario != "memory"


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
    points = profile.points if profile.is_for_latency else []
    for point in points:
        items, latency, speed = point.workload.num_items, point.latency, point.items_per_second
        if latency and items == 1:
            yield _judged("single item, p50", latency.p50_ms, "ms", 20, 50, is_tpu)
            yield _judged("single item, p99", latency.p99_ms, "ms", 50, 150, is_tpu)
        if speed and items in (8, 32):
            target, alert = (200, 100) if items == 8 else (500, 250)
            yield _judged(f"batch of {items}", speed, "items/s", target, alert, is_tpu)
    calls = [call for point in points for call in point.timed]
    for metric, stage, target, alert in (("tokenization", "tokenize", 5, 15), ("softmax", "finish", 1, 5)):
        told = [call for call in calls if stage in call.stages_ms]
        if told:
            share = sum(call.stages_ms[stage] for call in told) / sum(call.ms for call in told)
            yield _judged(f"share of {metric}", 100 * share, "%", target, alert, is_tpu)
    peaks = [report.peak_mib for report in profile.memory if report.peak_mib is not None]
    if peaks:
        count = profile.environment.hardware.partition(" x ")[0]
        devices = int(count) if count.isdecimal() else 1
        yield _judged("peak memory, models of 1B", max(peaks) / devices / 1024, "GiB", 8, 12, is_tpu)


def share_of(part: float, parts: Sequence[float]) -> float:
    """Return a part's share of the whole; 0 of nothing."""
    whole = sum(parts)
    return min(1.0, part / whole) if whole > 0 else 0.0


def _judged(metric: str, value: float, unit: str, target: float, alert: float, is_tpu: bool) -> Verdict:
    """Judge a figure that should be below its target, or above it where the alert is below the target."""
    sign = 1 if target < alert else -1
    verdict = "met" if sign * value < sign * target else "alert" if sign * value > sign * alert else "missed"
    return Verdict(metric, value, unit, target, alert, verdict if is_tpu else "not judged")
