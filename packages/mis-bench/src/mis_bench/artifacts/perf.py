"""The artifacts of `mis-bench perf`: a comparison of two versions, and a stored baseline."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.parts import repeated
from mis_bench.statistics import Interval

Status = Literal["ok", "warn", "unsure", "fail"]
"""`unsure`: the machine was too noisy to exclude a regression; it counts as a warning."""

Row = Literal["OK", "WARN", "REGRESSION"]


class Judgement(Part):
    """What became of a workload's throughput."""

    status: Status
    by: Literal["clock", "cpu"] = Field(description="Which of the two intervals decided.")
    limit: float = Field(gt=0, lt=1, description="Drop of throughput that fails, as a share.")
    throughput: Interval = Field(description="Relative change of items a second, head against base; -0.1: 10 % fewer.")
    throughput_by_cpu_time: Interval = Field(description="Likewise, of items by second of CPU time.")


class Tail(Part):
    """What became of a percentile of a workload's latency."""

    percentile: float
    base_ms: float = Field(ge=0)
    head_ms: float = Field(ge=0)
    rise: Interval = Field(description="Relative change, head against base; 0.15: 15 % more.")
    calls: int = Field(ge=1, description="Of each side.")
    is_enough: bool = Field(description="Whether so many calls say anything about this percentile.")
    status: Status


class Figures(Part):
    """Absolute figures of one workload, named as in the rows of `mis-bench run`."""

    name: str
    batch_size: int = Field(ge=1)
    num_labels: int = Field(ge=1)
    model: str
    dtype: str | None
    workload_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    successful_runs: int = Field(ge=1)
    throughput_ips: float = Field(gt=0, description="Items over the median time of a call.")
    cpu_ms: float = Field(ge=0, description="Median CPU time of a call.")
    latency_p50_ms: float = Field(ge=0)
    latency_p95_ms: float = Field(ge=0)
    latency_p99_ms: float = Field(ge=0)


class Yardstick(Part):
    """Time of a product of two matrices that both sides make between their turns: the machine's state."""

    p50_ms: float = Field(gt=0)
    p95_ms: float = Field(gt=0)


class Conditions(Part):
    """What figures depend on besides the code; stored figures decide only if all of it is the same."""

    hardware: str
    platform: str = Field(description="`cpu`, `gpu` or `tpu`.")
    model: str
    model_sha256: str
    dtype: str
    native: bool = Field(description="Whether the native CPU library is in use.")
    versions: dict[str, str] = Field(description="Of Python, jax, jaxlib, libtpu and NumPy.")
    options: dict[str, int | str] = Field(description="Of the engine.")


class StoredRow(Part):
    """A workload beside its stored figures."""

    name: str
    status: Row
    reasons: list[str]
    throughput: float = Field(description="Relative change against the stored figure.")
    p95: float | None
    p99: float | None


class Stored(Part):
    """The comparison with a stored baseline."""

    file: str
    commit: str | None = Field(description="The commit that it was taken of.")
    decides: bool
    why_not: str | None = Field(description="Why it does not decide.")
    rows: list[StoredRow]


class Compared(Part):
    """One workload of a comparison."""

    name: str
    pairs: int = Field(ge=2)
    calls_of_turn: int = Field(ge=1)
    judgement: Judgement
    tails: list[Tail]
    base: Figures
    head: Figures

    @property
    def status(self) -> Status:
        """The worst of throughput and percentiles."""
        return worst([self.judgement.status, *(tail.status for tail in self.tails)])


class PerfResult(Artifact, schema="mis-perf-v1"):
    """What `mis-bench perf` found."""

    base_commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    head_commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    head_is_dirty: bool = Field(description="Whether the head has changes that are not committed.")
    sources_are_equal: bool = Field(description="Then every difference is noise.")
    conditions: Conditions
    sessions: int = Field(ge=1, description="Pairs of processes.")
    seconds: float = Field(ge=0)
    confidence: float = Field(gt=0, lt=1, description="Of one interval of throughput.")
    yardstick: Yardstick
    workloads: list[Compared] = Field(min_length=1)
    notes: list[str]
    stored: Stored | None
    verdict: Status

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        for name in repeated([each.name for each in self.workloads]):
            yield f"workloads: {name} occurs twice"
        expected = overall([each.status for each in self.workloads], self.stored)
        if self.verdict != expected:
            yield f"verdict is {self.verdict}, but the workloads and the stored figures make it {expected}"


class Baseline(Artifact, schema="mis-baseline-v1"):
    """Stored figures, good for the conditions that they were taken under."""

    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    is_dirty: bool
    conditions: Conditions
    yardstick: Yardstick
    figures: list[Figures] = Field(min_length=1)


def worst(statuses: list[Status]) -> Status:
    """Return the worst status."""
    order: list[Status] = ["ok", "warn", "unsure", "fail"]
    return max(statuses, key=order.index)


def overall(statuses: list[Status], stored: Stored | None) -> Status:
    """Return the verdict: the worst status of all, stored figures included where they decide."""
    meaning: dict[Row, Status] = {"OK": "ok", "WARN": "warn", "REGRESSION": "fail"}
    if stored is not None and stored.decides:
        statuses = [*statuses, *(meaning[row.status] for row in stored.rows)]
    return worst(statuses)
