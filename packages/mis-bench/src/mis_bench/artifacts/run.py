"""The artifact of `mis-bench run`: one row of figures for every configuration of a profile."""

from collections.abc import Iterator
from typing import Literal

from pydantic import AwareDatetime, Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.gates import Gates, Miss, gate_faults, latency_figures
from mis_bench.artifacts.parts import WorkloadPart, repeated, times, unlike, unordered
from mis_bench.statistics import Interval
from mis_bench.targets.base import About

Status = Literal["ok", "warn", "failed", "skipped"]


class RunRow(Part):
    """Figures of one configuration: of the timed calls only, warm-ups aside.

    `warn` marks figures that are not clean: a compilation in the timed window, no steady state, a cache that may not
    have been cold, or a warm one with which the same work took longer. `failed`: a call was not answered. `skipped`:
    the configuration does not fit the target, or is outside what the profile measures.
    """

    name: str = Field(min_length=1, description="Unique in the artifact; the same in every run of the profile.")
    workload: WorkloadPart
    cache: Literal["cold", "warm"] = Field(description="warm: every call has the same query. cold: a new one each.")
    batch_size: int = Field(ge=1, description="Items per request.")
    num_labels: int = Field(ge=1)
    model: str
    dtype: str | None
    num_runs: int = Field(ge=0, description="Timed calls.")
    warmup_runs: int = Field(ge=0, description="Calls before them, more than asked for if there was no steady state.")
    successful_runs: int = Field(ge=0)
    success_rate: float = Field(ge=0, le=1)
    total_items: int = Field(ge=0, description="Items scored by the timed calls that were answered.")
    seconds: float = Field(ge=0, description="Of the timed loop.")
    throughput_ips: float = Field(ge=0, description="Items a second.")
    throughput_rps: float = Field(ge=0, description="Requests a second.")
    throughput_interval: Interval | None = Field(
        default=None, description="Of throughput_ips, by the bootstrap over latencies; null in an open loop."
    )
    latency_p50_ms: float | None = Field(default=None, ge=0)
    latency_p95_ms: float | None = Field(default=None, ge=0)
    latency_p99_ms: float | None = Field(default=None, ge=0)
    latency_mean_ms: float | None = Field(default=None, ge=0)
    latency_std_ms: float | None = Field(default=None, ge=0)
    warmup_ratio: float | None = Field(default=None, ge=0, description="Last warm-up over the timed median; at most 2.")
    timed_compilations: int | None = Field(default=None, ge=0, description="Null where the target does not tell.")
    warm_cache: str | None = Field(default=None, description="Why a cold row may not have been cold, if it may not.")
    failure_reason_counts: dict[str, int] = Field(default_factory=dict)
    status: Status
    reason: str | None = Field(default=None, description="Why the status is not ok.")

    def missed(self, gates: Gates) -> Iterator[Miss]:
        """Yield the gates missed. A row that did not fit misses all, one that the profile leaves out none."""
        if self.status == "skipped" and not self.warmup_runs:
            return
        figures = latency_figures(self.latency_p50_ms, self.latency_p99_ms)
        throughput = self.throughput_ips if self.successful_runs else None
        yield from gates.missed(self.name, {**figures, "min_items_per_second": throughput})

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction of the row."""
        yield from (f"workload.{fault}" for fault in self.workload.inconsistencies())
        successful, seconds = self.successful_runs, self.seconds
        yield from unlike(
            self,
            {
                "batch_size": self.workload.num_items,
                "num_labels": self.workload.num_labels,
                "success_rate": successful / self.num_runs if self.num_runs else 0.0,
                "total_items": successful * self.batch_size,
                "throughput_ips": self.throughput_rps * self.batch_size,
                "throughput_rps": successful / seconds if seconds else 0.0,
            },
        )
        failed = sum(self.failure_reason_counts.values())
        if successful + failed != self.num_runs and self.status != "skipped":
            yield f"successful_runs {successful} and failure_reason_counts {failed} do not add up to {self.num_runs}"
        yield from unordered(self, "latency_p50_ms", "latency_p95_ms", "latency_p99_ms")
        yield from self._status_faults(failed)
        if self.throughput_interval is not None:
            yield from interval_faults("throughput_interval", self.throughput_interval, self.throughput_ips)

    def _status_faults(self, failed: int) -> Iterator[str]:
        latencies = [getattr(self, f"latency_{each}_ms") for each in ("p50", "p95", "p99", "mean", "std")]
        if any((value is None) == (self.successful_runs > 0) for value in latencies):
            yield "latencies must be given exactly if a timed call was answered"
        if (self.status == "ok") != (self.reason is None):
            yield f"status is {self.status}, but reason is {self.reason!r}"
        if failed and self.status != "failed":
            yield f"status is {self.status} with {failed} failed calls"
        if self.status == "failed" and self.num_runs and not failed:
            yield "status is failed, but no timed call failed"
        if (self.status in ("ok", "warn")) != (self.num_runs > 0) and self.status != "failed":
            yield f"status is {self.status} with {self.num_runs} timed calls"
        unclean = bool(self.timed_compilations) or (self.warmup_ratio or 0) > 2 or self.warm_cache is not None
        if self.status == "ok" and unclean:
            yield "status is ok, but something was compiled, the warm-up was not steady, or the cache not cold"
        if self.status == "warn" and not unclean and self.cache == "cold":  # a warm one may be slower than another row
            yield "status is warn, but nothing was compiled, the warm-up was steady, and the cache not warm"


class RunResult(Artifact, schema="mis-run-v1"):
    """`run.json`: what was measured, where, of what, and the rows."""

    run_id: str = Field(min_length=1)
    finished: AwareDatetime
    profile: str = Field(pattern="^(smoke|standard|full|workloads)$", description="workloads: only named ones.")
    target: About = Field(description="The first target; rows name their own model and dtype.")
    tp_size: int = Field(ge=1)
    concurrency: int = Field(ge=1, description="Callers of a closed loop.")
    rate: float | None = Field(gt=0, description="Requests a second of an open loop, or null.")
    seed: int = Field(ge=0, description="Of the arrival times.")
    total_configurations: int = Field(ge=1)
    total_runtime_seconds: float = Field(ge=0)
    rows: list[RunRow] = Field(min_length=1)
    gates: Gates = Field(default_factory=Gates)
    gates_missed: list[Miss] = Field(default_factory=list)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from times(self.environment, self.finished, self.total_runtime_seconds)
        if self.total_configurations != len(self.rows):
            yield f"total_configurations is {self.total_configurations}, but there are {len(self.rows)} rows"
        for name in repeated([row.name for row in self.rows]):
            yield f"rows: {name} occurs twice"
        if sum(row.seconds for row in self.rows) > self.total_runtime_seconds + 1e-3:
            yield "total_runtime_seconds is less than the rows' seconds together"
        for number, row in enumerate(self.rows):
            yield from (f"rows.{number}.{fault}" for fault in row.inconsistencies())
            if self.rate is not None and row.throughput_interval is not None:
                yield f"rows.{number}.throughput_interval is given, but the loop was open"
        if not any(row.successful_runs or row.status == "failed" for row in self.rows):
            yield "rows: none was measured, but none has failed"
        yield from gate_faults(self.gates_missed, [miss for row in self.rows for miss in row.missed(self.gates)])


def interval_faults(name: str, interval: Interval, value: float) -> Iterator[str]:
    """Yield what is wrong with an interval of a figure that is given elsewhere."""
    if not interval.low <= interval.value <= interval.high:
        yield f"{name} does not hold low <= value <= high"
    if abs(interval.value - value) > 1e-6 * max(1.0, value):
        yield f"{name}.value is {interval.value}, but the figure is {value}"
