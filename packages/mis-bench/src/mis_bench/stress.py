"""Stress scenarios: large requests, many callers, and a load that lasts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.artifacts.stress import ERRORS, StressTestResult
from mis_bench.loads import Load
from mis_bench.measure import Call, Timed, closed_loop, one_call, open_loop
from mis_bench.statistics import Latency
from mis_bench.targets.base import BlockingTarget
from mis_bench.workload import Workload
from mis_bench.workloads.traces import arriving

LABELS = 4

ITERATIONS = 5
"""Requests of a large batch."""

RATE, SUSTAINED_SECONDS, SUSTAINED_BATCH = 10.0, 300.0, 16

CONCURRENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StressConfiguration:
    """One thing to survive.

    Attributes:
        scenario: `large-batch`, `concurrent` or `sustained`.
        batch: Items per request, 120 tokens each with their query.
        workers: Callers of a closed loop, or 0.
        seconds: How long it lasts, or 0 for `ITERATIONS` requests.
        rate: Requests a second of an open loop, or 0.
        tolerated: Reasons of failure that are allowed.
    """

    scenario: str
    batch: int
    workers: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    tolerated: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Scenario and sizes, `concurrent-16x4` for instance."""
        sizes = f"{self.workers}x{self.batch}" if self.scenario == "concurrent" else str(self.batch)
        return f"{self.scenario}-{sizes}"

    @property
    def workload(self) -> str:
        """Name of the requests' workload: sequences of at most 128 tokens."""
        return f"stress-100-{self.batch}-20@{LABELS}"


def stress_configurations(scenario: str, seconds: float | None, rate: float) -> Iterator[StressConfiguration]:
    """Yield what a scenario consists of.

    Args:
        scenario: `large-batch`, `concurrent` or `sustained`.
        seconds: Of a configuration of the latter two; None: 30 and 300.
        rate: Requests a second of `sustained`.
    """
    if scenario == "large-batch":
        for batch in (50, 100, 200):
            yield StressConfiguration(scenario, batch, tolerated=("out_of_memory",) if batch == 200 else ())
    elif scenario == "concurrent":
        for workers, batch in ((4, 8), (8, 8), (16, 4)):
            yield StressConfiguration(scenario, batch, workers=workers, seconds=seconds or CONCURRENT_SECONDS)
    else:
        yield StressConfiguration(scenario, SUSTAINED_BATCH, seconds=seconds or SUSTAINED_SECONDS, rate=rate)


def stress_one(
    target: BlockingTarget,
    configuration: StressConfiguration,
    build: Callable[[str], Workload],
    on_call: Callable[[Call], None] = lambda _: None,
) -> StressTestResult:
    """Put a target under one load, and look whether it still answers afterwards.

    One request beforehand warms up and is not counted.

    Args:
        target: Whom.
        configuration: The load.
        build: Makes a workload of its name.
        on_call: Told of every finished call.
    """
    load = Load(build(configuration.workload))
    requests = load.requests()
    one_call(target, next(requests), since=0.0)
    timed = _loop(target, configuration, requests, on_call)
    afterwards = one_call(target, build(f"afterwards-20-1-10@{LABELS}"), since=0.0)
    latency = Latency.of(timed.latencies_ms)
    failed = [call for call in timed.calls if not call.ok]
    sizes = {"batch_size": configuration.batch, "num_labels": LABELS}
    more = {"workers": configuration.workers, "seconds": configuration.seconds, "rate": configuration.rate}
    result = StressTestResult(
        name=configuration.name,
        scenario=configuration.scenario,
        workload=WorkloadPart.of(load.workload),
        configuration=sizes | {name: value for name, value in more.items() if value},
        tolerated=list(configuration.tolerated),
        success=False,
        total_requests=len(timed.calls),
        successful_requests=len(timed.calls) - len(failed),
        failed_requests=len(failed),
        failure_reason_counts=timed.failures,
        answers_afterwards=afterwards.ok,
        throughput_rps=timed.requests_per_second,
        throughput_ips=timed.items_per_second,
        latency_p50_ms=latency.p50_ms if latency else None,
        latency_mean_ms=latency.mean_ms if latency else None,
        latency_p99_ms=latency.p99_ms if latency else None,
        errors=[f"{call.failure}: {call.message}"[:300] for call in failed[:ERRORS]],
        duration_seconds=timed.seconds,
    )
    result.success = result.is_success
    return result


def _loop(
    target: BlockingTarget,
    configuration: StressConfiguration,
    requests: Iterator[Workload],
    on_call: Callable[[Call], None],
) -> Timed:
    if configuration.rate:
        total = max(1, round(configuration.rate * configuration.seconds))
        return open_loop(target, arriving(requests, configuration.rate, total=total), on_call=on_call)
    if configuration.workers:
        return closed_loop(
            target, requests, concurrency=configuration.workers, until_s=configuration.seconds, on_call=on_call
        )
    return closed_loop(target, list(islice(requests, ITERATIONS)), on_call=on_call)
