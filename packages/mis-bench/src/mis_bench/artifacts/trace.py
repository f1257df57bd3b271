"""The artifact of `mis-bench run --trace`: one row of figures for every number of items, and one for all."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Self

from pydantic import AwareDatetime, Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.gates import Gates, Miss, gate_faults, latency_figures
from mis_bench.artifacts.parts import repeated, times, unlike
from mis_bench.measure import Call
from mis_bench.statistics import Latency
from mis_bench.targets.base import About
from mis_bench.workload import WorkloadNameError
from mis_bench.workloads.traces import Trace, build_trace


class TracePart(Part):
    """What was asked, and when; a drawn trace can be built again from its name, and proved by its checksum."""

    name: str = Field(min_length=1, description="Of `build_trace`, or of the file.")
    is_recorded: bool = Field(description="Whether it was read from a file.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_requests: int = Field(ge=1)
    vocab_size: int | None = Field(default=None, ge=1, description="Ids were folded into it.")

    @classmethod
    def of(cls, trace: Trace, *, is_recorded: bool, vocab_size: int | None) -> Self:
        """Describe a trace, which is folded into its vocabulary already."""
        return cls(
            name=trace.name,
            is_recorded=is_recorded,
            sha256=trace.sha256,
            num_requests=len(trace.arrivals),
            vocab_size=vocab_size,
        )

    def inconsistencies(self) -> Iterator[str]:
        """Yield what differs from the trace built anew."""
        if self.is_recorded:
            return
        try:
            trace = build_trace(self.name)
        except WorkloadNameError as error:
            yield f"name: {error}"
            return
        trace = trace if self.vocab_size is None else trace.within(self.vocab_size)
        if self.sha256 != trace.sha256:
            yield f"sha256 is {self.sha256}, but the trace {self.name} has {trace.sha256}"
        if self.num_requests != len(trace.arrivals):
            yield f"num_requests is {self.num_requests}, but the trace {self.name} has {len(trace.arrivals)}"


class TraceRow(Part):
    """Figures of the requests of one size, or of all.

    Latency counts from when a request was due. Throughput is limited by how much the trace asks for.
    """

    name: str = Field(min_length=1, description="`30 items`, or `all`.")
    num_items: int | None = Field(ge=1, description="Of a request; null for all sizes together.")
    num_requests: int = Field(ge=1)
    successful_requests: int = Field(ge=0)
    failure_reason_counts: dict[str, int]
    total_items: int = Field(ge=0, description="Of the requests that were answered.")
    throughput_ips: float = Field(ge=0, description="Items a second, over the time of the whole trace.")
    throughput_rps: float = Field(ge=0)
    latency: Latency | None = Field(description="Of the requests that were answered; null if none was.")

    @classmethod
    def of(cls, calls: Sequence[Call], num_items: int | None, seconds: float) -> Self:
        """Summarise calls of one size, or of all, in a loop that took so many seconds."""
        good = [call for call in calls if call.ok]
        items = sum(call.workload.num_items for call in good)
        return cls(
            name=row_name(num_items),
            num_items=num_items,
            num_requests=len(calls),
            successful_requests=len(good),
            failure_reason_counts=dict(Counter(call.failure for call in calls if call.failure is not None)),
            total_items=items,
            throughput_ips=items / seconds,
            throughput_rps=len(good) / seconds,
            latency=Latency.of([call.latency_s * 1e3 for call in good]),
        )

    def missed(self, gates: Gates) -> Iterator[Miss]:
        """Yield the gates missed: latencies are those of one size, throughput is that of all."""
        if self.num_items is None:
            yield from gates.missed(self.name, {"min_items_per_second": self.throughput_ips})
        else:
            latency = self.latency
            figures = latency_figures(latency.p50_ms, latency.p99_ms) if latency else latency_figures(None, None)
            yield from gates.missed(self.name, figures)

    def inconsistencies(self, seconds: float) -> Iterator[str]:
        """Yield every contradiction of the row of a loop that took so many seconds."""
        expected = {
            "num_requests": self.successful_requests + sum(self.failure_reason_counts.values()),
            "throughput_ips": self.total_items / seconds,
            "throughput_rps": self.successful_requests / seconds,
        }
        if self.num_items is not None:
            expected["total_items"] = self.successful_requests * self.num_items
        yield from unlike(self, expected)
        if self.name != row_name(self.num_items):
            yield f"name is {self.name}, but the row is that of {row_name(self.num_items)}"
        if (self.latency is None) == (self.successful_requests > 0):
            yield "latency must be given exactly if a request was answered"


class TraceResult(Artifact, schema="mis-trace-v1"):
    """`trace.json`: an open loop, whose requests were sent when they were due."""

    run_id: str = Field(min_length=1)
    finished: AwareDatetime
    target: About
    trace: TracePart
    warmup_runs: int = Field(ge=0, description="Calls before the trace, of the same sizes with other queries.")
    forgot: bool = Field(description="Before the trace. False: the target knows no way, and may know its queries.")
    timed_compilations: int | None = Field(default=None, ge=0, description="Null where the target does not tell.")
    seconds: float = Field(gt=0, description="From the beginning of the trace to its last answer.")
    total_runtime_seconds: float = Field(ge=0)
    rows: list[TraceRow] = Field(min_length=2, description="By rising number of items; `all` is the last.")
    gates: Gates = Field(default_factory=Gates)
    gates_missed: list[Miss] = Field(default_factory=list)
    success: bool = Field(description="Whether every request was answered, and no gate was missed.")

    @property
    def is_success(self) -> bool:
        """The rule of `success`."""
        return not self.gates_missed and all(row.successful_requests == row.num_requests for row in self.rows)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from times(self.environment, self.finished, self.total_runtime_seconds)
        yield from (f"trace.{fault}" for fault in self.trace.inconsistencies())
        if self.seconds > self.total_runtime_seconds + 1e-3:
            yield "total_runtime_seconds is less than seconds"
        for name in repeated([row.name for row in self.rows]):
            yield f"rows: {name} occurs twice"
        for number, row in enumerate(self.rows):
            yield from (f"rows.{number}.{fault}" for fault in row.inconsistencies(self.seconds))
        *sizes, everything = self.rows
        items = [row.num_items or 0 for row in sizes]
        if items != sorted(items) or 0 in items or everything.num_items is not None:
            yield "rows must be those of rising numbers of items, and that of all"
        for field in ("num_requests", "successful_requests", "total_items"):
            total = sum(getattr(row, field) for row in sizes)
            if getattr(everything, field) != total:
                yield f"{field} of all is {getattr(everything, field)}, but the other rows have {total}"
        if everything.num_requests != self.trace.num_requests:
            yield f"num_requests of all is {everything.num_requests}, but the trace has {self.trace.num_requests}"
        yield from gate_faults(self.gates_missed, [miss for row in self.rows for miss in row.missed(self.gates)])
        if self.success != self.is_success:
            yield f"success is {self.success}, but the rows make it {self.is_success}"


def row_name(num_items: int | None) -> str:
    """Return the name of a row, and of its calls."""
    return "all" if num_items is None else f"{num_items} items"
