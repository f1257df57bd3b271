"""The artifact of `mis-bench stress`."""

from collections.abc import Iterator

from pydantic import AwareDatetime, Field

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.parts import WorkloadPart, repeated, times, unlike, unordered
from mis_bench.targets.base import About

ERRORS = 10
"""Messages kept of a result."""


class StressTestResult(Part):
    """What one configuration of a scenario came to."""

    name: str = Field(min_length=1, description="Scenario and configuration, such as large-batch-100.")
    scenario: str = Field(pattern="^(large-batch|concurrent|sustained)$")
    workload: WorkloadPart
    configuration: dict[str, int | float] = Field(description="batch_size, num_labels, workers, requests a second ...")
    tolerated: list[str] = Field(description="Reasons of failure that are no failure of this configuration.")
    success: bool
    total_requests: int = Field(ge=0)
    successful_requests: int = Field(ge=0)
    failed_requests: int = Field(ge=0)
    failure_reason_counts: dict[str, int]
    answers_afterwards: bool = Field(description="Whether a small request was answered after the last one.")
    throughput_rps: float = Field(ge=0)
    throughput_ips: float = Field(ge=0)
    latency_p50_ms: float | None = Field(ge=0)
    latency_mean_ms: float | None = Field(ge=0)
    latency_p99_ms: float | None = Field(ge=0)
    errors: list[str] = Field(max_length=ERRORS, description="The first messages.")
    duration_seconds: float = Field(ge=0)

    @property
    def is_success(self) -> bool:
        """The rule: something was answered or failed in a tolerated way, nothing else failed, and it still answers."""
        tolerated = sum(self.failure_reason_counts.get(reason, 0) for reason in self.tolerated)
        return self.total_requests > 0 and self.failed_requests == tolerated and self.answers_afterwards

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction of the result."""
        yield from (f"workload.{fault}" for fault in self.workload.inconsistencies())
        seconds = self.duration_seconds
        yield from unlike(
            self,
            {
                "total_requests": self.successful_requests + self.failed_requests,
                "failed_requests": sum(self.failure_reason_counts.values()),
                "throughput_rps": self.successful_requests / seconds if seconds else 0.0,
                "throughput_ips": self.throughput_rps * self.workload.num_items,
            },
        )
        yield from unordered(self, "latency_p50_ms", "latency_p99_ms")
        if (self.latency_p50_ms is None) == (self.successful_requests > 0):
            yield "latencies must be given exactly if a request was answered"
        if self.success != self.is_success:
            yield f"success is {self.success}, but the counts make it {self.is_success}"
        if len(self.errors) != min(ERRORS, self.failed_requests):
            yield f"errors has {len(self.errors)} messages of {self.failed_requests} failed requests"
        for field, value in (("batch_size", self.workload.num_items), ("num_labels", self.workload.num_labels)):
            if self.configuration.get(field) != value:
                yield f"configuration.{field} is {self.configuration.get(field)}, but the workload has {value}"


class StressResult(Artifact, schema="mis-stress-v1"):
    """`stress.json`: results of the scenarios."""

    run_id: str = Field(min_length=1)
    finished: AwareDatetime
    target: About
    total_runtime_seconds: float = Field(ge=0)
    success: bool = Field(description="Of all results.")
    results: list[StressTestResult] = Field(min_length=1)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction."""
        yield from times(self.environment, self.finished, self.total_runtime_seconds)
        for name in repeated([result.name for result in self.results]):
            yield f"results: {name} occurs twice"
        if self.success != all(result.success for result in self.results):
            yield f"success is {self.success}, but not so the results"
        for number, result in enumerate(self.results):
            yield from (f"results.{number}.{fault}" for fault in result.inconsistencies())
