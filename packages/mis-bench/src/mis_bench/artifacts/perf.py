"""The artifacts of `mis-bench perf`: a comparison of two versions, and a stored baseline."""

from collections.abc import Iterator

from pydantic import Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.parts import differs, repeated, unlike, unordered
from mis_bench.perf.rules import (
    Clock,
    Rules,
    Status,
    StoredStatus,
    decide,
    is_enough,
    limit_of,
    reached,
    stored_verdict,
    tail_status,
    worst,
)
from mis_bench.statistics import Interval


class Judgement(Part):
    """What became of a workload's throughput."""

    status: Status
    by: Clock = Field(description="Which of the two intervals decided.")
    limit: float = Field(gt=0, lt=1, description="Drop of throughput that fails, as a share.")
    throughput: Interval = Field(description="Relative change of items a second, head against base; -0.1: 10 % fewer.")
    throughput_by_cpu_time: Interval = Field(description="Likewise, of items by second of CPU time.")

    @property
    def is_quiet(self) -> bool:
        """Whether the clock was sure: one too noisy for the middle of the calls says less about their end."""
        return self.by == "clock" and self.status != "unsure"

    def inconsistencies(self, *, items: int, confidence: float, on_cpu: bool) -> Iterator[str]:
        """Yield every contradiction, given the items of a call and what the result says of all workloads."""
        yield from unlike(self, {"limit": limit_of(items)})
        for name in ("throughput", "throughput_by_cpu_time"):
            found: Interval = getattr(self, name)
            if differs(found.confidence, confidence):
                yield f"{name}.confidence is {found.confidence}, but so many pairs have {confidence}"
        status, by = decide(self.throughput, self.throughput_by_cpu_time, limit_of(items), on_cpu=on_cpu)
        if (self.status, self.by) != (status, by):
            yield f"status is {self.status} by {self.by}, but the intervals make it {status} by {by}"


class Tail(Part):
    """What became of a percentile of a workload's latency."""

    percentile: float
    base_ms: float = Field(ge=0)
    head_ms: float = Field(ge=0)
    rise: Interval = Field(description="Relative change, head against base; 0.15: 15 % more.")
    calls: int = Field(ge=1, description="Of each side.")
    is_enough: bool = Field(description="Whether so many calls say anything about this percentile.")
    status: Status

    def inconsistencies(self, base: "Figures", head: "Figures", *, may_fail: bool) -> Iterator[str]:
        """Yield every contradiction, given the sides' figures and whether the clock was quiet."""
        percentile = f"latency_p{self.percentile:.0f}_ms"
        before, after = getattr(base, percentile), getattr(head, percentile)
        yield from unlike(self, {"base_ms": before, "head_ms": after, "calls": base.successful_runs})
        rise = after / before - 1 if before else 0.0
        if differs(self.rise.value, rise):
            yield f"rise.value is {self.rise.value}, but the figures make it {rise}"
        if self.is_enough != is_enough(self.calls, self.percentile):
            yield f"is_enough is {self.is_enough} of {self.calls} calls"
        status = tail_status(self.rise, self.percentile, self.calls, may_fail=may_fail)
        if self.status != status:
            yield f"status is {self.status}, but the rise makes it {status}"


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

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from unordered(self, "latency_p50_ms", "latency_p95_ms", "latency_p99_ms")
        if self.latency_p50_ms:
            yield from unlike(self, {"throughput_ips": self.batch_size / self.latency_p50_ms * 1e3})


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
    status: StoredStatus
    reasons: list[str]
    throughput: float | None = Field(description="Relative change against the stored figure; null: not measured.")
    p95: float | None
    p99: float | None
    cpu_time: float | None = Field(description="Relative change of a call's CPU time, on CPUs.")
    calls: int = Field(ge=0, description="Of the side that has fewer.")

    def inconsistencies(self) -> Iterator[str]:
        """Yield what does not follow from the changes, by the limits of a `Stored`."""
        expected = stored_verdict(self.throughput, self.p95, self.p99, calls=self.calls, cpu_time=self.cpu_time)
        if (self.status, self.reasons) != expected:
            yield f"status is {self.status} for {self.reasons}, but the changes make it {expected[0]} for {expected[1]}"


class Stored(Part):
    """The comparison with a stored baseline."""

    file: str
    commit: str | None = Field(description="The commit that it was taken of.")
    decides: bool
    why_not: str | None = Field(description="Why it does not decide.")
    rows: list[StoredRow]

    def inconsistencies(self, workloads: list[str]) -> Iterator[str]:
        """Yield every contradiction, given the workloads that were compared."""
        if self.decides != (self.why_not is None):
            yield f"decides is {self.decides}, but why_not is {self.why_not!r}"
        if self.decides and [row.name for row in self.rows] != workloads:
            yield "rows are not those of the workloads"
        for number, row in enumerate(self.rows):
            yield from (f"rows.{number}.{fault}" for fault in row.inconsistencies())


_SAME_REQUEST = {"batch_size", "num_labels", "workload_sha256"}


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

    def inconsistencies(self, conditions: Conditions, confidence: float) -> Iterator[str]:
        """Yield every contradiction, given what the result says of all workloads."""
        for side in ("base", "head"):
            figures: Figures = getattr(self, side)
            yield from (f"{side}.{fault}" for fault in figures.inconsistencies())
            yield from (f"{side}.{f}" for f in unlike(figures, {"successful_runs": self.pairs * self.calls_of_turn}))
            expected = {"name": self.name, "model": conditions.model, "dtype": conditions.dtype}
            for field, value in (expected | self.base.model_dump(include=_SAME_REQUEST)).items():
                if getattr(figures, field) != value:
                    yield f"{side}.{field} is {getattr(figures, field)}, but another field makes it {value}"
        judgement = self.judgement.inconsistencies(
            items=self.base.batch_size, confidence=reached(confidence, self.pairs), on_cpu=conditions.platform == "cpu"
        )
        yield from (f"judgement.{fault}" for fault in judgement)
        if [tail.percentile for tail in self.tails] != [95, 99]:
            yield "tails are not p95 and p99"
            return
        for number, tail in enumerate(self.tails):
            faults = tail.inconsistencies(self.base, self.head, may_fail=self.judgement.is_quiet)
            yield from (f"tails.{number}.{fault}" for fault in faults)


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
        yield from unlike(self, {"confidence": Rules(len(self.workloads)).confidence})
        for number, each in enumerate(self.workloads):
            faults = each.inconsistencies(self.conditions, self.confidence)
            yield from (f"workloads.{number}.{fault}" for fault in faults)
            if each.pairs != self.workloads[0].pairs or each.pairs % self.sessions:
                yield f"workloads.{number}.pairs is {each.pairs}, which {self.sessions} sessions do not make"
        if self.stored is not None:
            names = [each.name for each in self.workloads]
            yield from (f"stored.{fault}" for fault in self.stored.inconsistencies(names))
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

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        for name in repeated([each.name for each in self.figures]):
            yield f"figures: {name} occurs twice"
        for number, each in enumerate(self.figures):
            yield from (f"figures.{number}.{fault}" for fault in each.inconsistencies())
            if (each.model, each.dtype) != (self.conditions.model, self.conditions.dtype):
                yield f"figures.{number} are of {each.model} in {each.dtype}, unlike the conditions"


def overall(statuses: list[Status], stored: Stored | None) -> Status:
    """Return the verdict: the worst status of all, stored figures included where they decide."""
    meaning: dict[StoredStatus, Status] = {"OK": "ok", "WARN": "warn", "REGRESSION": "fail"}
    if stored is not None and stored.decides:
        statuses = [*statuses, *(meaning[row.status] for row in stored.rows)]
    return worst(statuses)
