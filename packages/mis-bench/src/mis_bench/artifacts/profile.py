"""The artifact of `mis-bench profile`: where the time or the memory of a scenario went."""

from collections.abc import Iterator
from typing import Literal

from pydantic import AwareDatetime, Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.parts import WorkloadPart, repeated, unlike
from mis_bench.statistics import Latency
from mis_bench.targets.base import About

Scenario = Literal["end-to-end", "single", "batch-scaling", "memory", "kernels"]

_ROUNDING = 1e-6


class TraceFiles(Part):
    """A trace, and how it was recorded. Paths are relative to the artifact's folder."""

    xplane: list[str] = Field(description="For XProf; empty if the trace lies on the server's machine.")
    perfetto: list[str] = Field(description="For Perfetto: https://ui.perfetto.dev.")
    server_folder: str | None = Field(default=None, description="Folder under the server's --profile-dir.")
    host_tracer_level: int = Field(ge=0, le=3)
    python_tracer_level: int = Field(ge=0, le=1)


class StageTime(Part):
    """Time of one stage of the model, summed over operations."""

    stage: str
    ms: float = Field(ge=0)
    share: float = Field(ge=0, le=1, description="Of the time of all operations.")
    operations: int = Field(ge=1)


class LayerTime(Part):
    """Time of one layer, summed over operations and requests."""

    layer: int | None = Field(ge=0, description="Counted from 0; null: in a layer, but the trace does not tell which.")
    ms: float = Field(ge=0)
    share: float = Field(ge=0, le=1, description="Of the time of all operations.")


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


class HostTime(Part):
    """Time of a span that the host marked, summed."""

    mark: str = Field(description="`mis.wait` is waiting for the device.")
    ms: float = Field(ge=0)
    marks: int = Field(ge=1)


class DeviceTime(Part):
    """How much of the clock some operation ran, on average over devices. On a CPU, device and host are one chip."""

    wall_ms: float = Field(ge=0)
    busy_ms: float = Field(ge=0)
    idle_ms: float = Field(ge=-_ROUNDING, description="The host's alone: nothing ran.")
    busy_share: float = Field(ge=0, le=1)


class ScoreProfileResult(Part):
    """One profiled request. Profiled requests are slower than others: use `latency` for latencies."""

    total_latency_ms: float = Field(ge=0)
    tokenization_ms: float | None = Field(ge=0, description="Parsing and tokenizing.")
    queue_wait_ms: float | None = Field(ge=0, description="Until the first step had room.")
    model_forward_ms: float | None = Field(ge=0, description="From the first step to the last value.")
    device_to_host_ms: float | None = Field(ge=0, description="Reading values that were ready.")
    logprob_extraction_ms: float | None = Field(ge=0, description="Operations of the head: label_logits, log_sum_exp.")
    softmax_ms: float | None = Field(ge=0, description="From label logits to scores, on the host.")
    batch_size: int = Field(ge=1, description="Items.")
    num_items: int = Field(ge=1)
    num_label_tokens: int = Field(ge=1)
    sequence_lengths: list[int] = Field(description="Distinct lengths of query and item together, in tokens.")
    peak_hbm_mb: float | None = Field(
        default=None, ge=0, description="Highest use of all devices' memory since the start; null where none tells."
    )
    model_name: str | None = None
    hardware: str | None = None
    trace_path: str | None = None


class Point(Part):
    """Requests of one number of items: not profiled ones for the figures, one profiled one for the split."""

    workload: WorkloadPart
    num_requests: int = Field(ge=0, description="Requests that were timed.")
    throughput_ips: float = Field(ge=0, description="Items a second.")
    latency: Latency | None
    device: DeviceTime | None = None
    stages: list[StageTime] = Field(default_factory=list)


class Tensor(Part):
    """An array that stays on the devices."""

    memory_mb: float = Field(ge=0)
    shape: list[int]
    dtype: str


class MemoryReport(Part):
    """What lay on the devices at one time, in megabytes of 2**20 bytes, all devices together."""

    report_type: Literal["resident"] = "resident"
    stage: str = Field(description="When: `loaded` or `served`.")
    total_memory_mb: float = Field(ge=0, description="Of the tensors.")
    largest_tensor: str
    largest_memory_mb: float = Field(ge=0)
    tensors: dict[str, Tensor] = Field(min_length=1)
    device_memory_mb: float | None = Field(default=None, ge=0, description="In use, as the devices say; null on CPUs.")
    peak_memory_mb: float | None = Field(default=None, ge=0, description="Highest so far; null on CPUs.")
    process_memory_mb: float = Field(ge=0, description="Resident memory of this process.")
    pprof: str = Field(description="Device memory profile beside the artifact, for pprof.")


class Verdict(Part):
    """A figure beside its target and its alert, which are for one TPU chip."""

    metric: str
    value: float
    unit: str
    target: float
    alert: float
    verdict: Literal["met", "missed", "alert", "not judged"]


class MetadataConfig(Part):
    """What was profiled."""

    profile: Scenario
    model: str
    batch_sizes: list[int]
    num_runs: int = Field(ge=0)


class MetadataHardware(Part):
    """On what."""

    device: str
    device_count: int = Field(ge=1)
    zone: str | None


class MetadataArtifacts(Part):
    """Paths in the folder; null where there is none."""

    traces: str | None
    memory: str | None
    benchmark: str


class Metadata(Part):
    """`metadata.json`: enough to file the folder."""

    timestamp: AwareDatetime
    commit: str | None
    branch: str | None
    trigger: str
    config: MetadataConfig
    hardware: MetadataHardware
    artifacts: MetadataArtifacts


class ProfileResult(Artifact, schema="mis-profile-v1"):
    """`profile.json`."""

    scenario: Scenario
    is_for_latency: bool = Field(description="False of memory runs: they wait for the devices. No latency counts.")
    target: About
    metadata: Metadata
    trace: TraceFiles | None = None
    points: list[Point] = Field(description="One for each number of items.")
    requests: list[ScoreProfileResult] = Field(description="The profiled requests.")
    device: DeviceTime | None = Field(default=None, description="Of all profiled requests together.")
    stages: list[StageTime] = Field(default_factory=list)
    layers: list[LayerTime] = Field(default_factory=list)
    operations: list[OperationTime] = Field(default_factory=list)
    host: list[HostTime] = Field(default_factory=list)
    memory: list[MemoryReport] = Field(default_factory=list)
    verdicts: list[Verdict] = Field(default_factory=list)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        if self.is_for_latency != (self.scenario != "memory"):
            yield f"is_for_latency is {self.is_for_latency}, but the scenario is {self.scenario}"
        if bool(self.memory) != (self.scenario == "memory"):
            yield f"memory has {len(self.memory)} reports, but the scenario is {self.scenario}"
        if not self.is_for_latency and (self.trace or self.requests or any(point.latency for point in self.points)):
            yield "a memory run has a trace, requests or latencies"
        if self.metadata.config.profile != self.scenario:
            yield f"metadata.config.profile is {self.metadata.config.profile}, but the scenario is {self.scenario}"
        for name in ("stages", "layers", "operations"):
            whole = sum(part.share for part in getattr(self, name))
            if whole > 1 + _ROUNDING:
                yield f"{name}: shares sum up to {whole}, more than the whole"
        for stage in repeated([part.stage for part in self.stages]):
            yield f"stages: {stage} occurs twice"
        for number, point in enumerate(self.points):
            yield from (f"points.{number}.workload.{fault}" for fault in point.workload.inconsistencies())
            if (point.latency is None) != (point.num_requests == 0):
                yield f"points.{number}: latency must be given exactly if requests were timed"
        for number, report in enumerate(self.memory):
            yield from (f"memory.{number}.{fault}" for fault in _memory_faults(report))
        if self.device is not None:
            wall, busy = self.device.wall_ms, self.device.busy_ms
            yield from (f"device.{fault}" for fault in unlike(self.device, {"idle_ms": wall - busy}))


def _memory_faults(report: MemoryReport) -> Iterator[str]:
    sizes = {name: tensor.memory_mb for name, tensor in report.tensors.items()}
    yield from unlike(report, {"total_memory_mb": sum(sizes.values()), "largest_memory_mb": max(sizes.values())})
    if report.largest_tensor not in sizes:
        yield f"largest_tensor {report.largest_tensor} is not among the tensors"
