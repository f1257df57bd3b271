"""Measuring one configuration: warm-ups until they are steady, then a timed loop that compiles nothing."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mis_bench.artifacts.parts import CallRecord, WorkloadPart
from mis_bench.artifacts.run import RunRow
from mis_bench.loads import Load
from mis_bench.measure import Call, Timed, closed_loop, counted, open_loop
from mis_bench.statistics import Interval, Latency, interval
from mis_bench.targets.base import BlockingTarget, CallFailed
from mis_bench.workload import Workload
from mis_bench.workloads.traces import arriving

STEADY = 2.0
"""The last warm-up takes at most this many times the timed median."""

ATTEMPTS = 3
"""Timed loops: one that compiles or is not steady counts as warm-up, and is repeated."""

DOES_NOT_FIT = ("rejected", "out_of_memory")
"""Failures of a warm-up that say that the configuration does not fit the target."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How often and how fast calls are sent.

    Attributes:
        runs: Timed calls.
        warmup_runs: Calls before them.
        concurrency: Callers of a closed loop.
        rate: Requests a second of an open loop, or None.
        seed: Of the arrival times.
    """

    runs: int
    warmup_runs: int
    concurrency: int = 1
    rate: float | None = None
    seed: int = 0


def measure_row(
    target: BlockingTarget, name: str, load: Load, counts: Counts, on_call: Callable[[Call], None] = lambda _: None
) -> tuple[RunRow, list[CallRecord]]:
    """Measure one configuration.

    Args:
        target: Whom.
        name: Of the row.
        load: What is asked.
        counts: How often.
        on_call: Told of every finished call.

    Returns:
        The row, and its calls: warm-ups, then the timed ones.
    """
    doubt: str | None = None
    try:
        target.forget()
    except CallFailed as error:
        if error.reason != "rejected":
            return empty_row(target, name, load, status="failed", reason=f"{error.reason}: {error}"[:300]), []
        doubt = f"earlier rows or runs may have left their queries: {error}" if load.cache == "cold" else None
    requests = load.requests()
    first = closed_loop(target, islice(requests, counts.warmup_runs), concurrency=counts.concurrency, on_call=on_call)
    warmups = list(first.calls)
    failed = next((call for call in warmups if not call.ok), None)
    if failed is not None:
        status = "skipped" if failed.failure in DOES_NOT_FIT else "failed"
        row = empty_row(target, name, load, status=status, reason=f"{failed.failure}: {failed.message}"[:300])
        row.warmup_runs = len(warmups)
        return row, list(_records(name, warmups, []))
    for attempt in range(ATTEMPTS):
        before = target.counts()
        timed = _timed(target, requests, counts, on_call)
        compilations = counted(before, target.counts(), "compilations")
        ratio = _ratio(warmups, timed)
        is_steady = (ratio is None or ratio <= STEADY) and not compilations
        # A failed call must not pass for a warm-up.
        if is_steady or timed.failures or attempt == ATTEMPTS - 1:
            break
        warmups += timed.calls
    return _row(target, name, load, warmups, timed, ratio, compilations, counts, doubt), list(
        _records(name, warmups, timed.calls)
    )


def empty_row(target: BlockingTarget, name: str, load: Load, *, status: str, reason: str) -> RunRow:
    """Return the row of a configuration that was not timed."""
    return RunRow.model_validate(
        _what(target, name, load)
        | {
            "num_runs": 0, "warmup_runs": 0, "successful_runs": 0, "success_rate": 0, "total_items": 0, "seconds": 0,
            "throughput_ips": 0, "throughput_rps": 0, "status": status, "reason": reason,
        }
    )  # fmt: skip


def _timed(
    target: BlockingTarget, requests: Iterator[Workload], counts: Counts, on_call: Callable[[Call], None]
) -> Timed:
    if counts.rate is not None:
        due = arriving(requests, counts.rate, total=counts.runs, seed=counts.seed)
        return open_loop(target, due, on_call=on_call)
    asked = list(islice(requests, counts.runs))  # made before the clock starts
    return closed_loop(target, asked, concurrency=counts.concurrency, on_call=on_call)


def _ratio(warmups: list[Call], timed: Timed) -> float | None:
    latencies = [call.latency_s for call in timed.calls if call.ok]
    last = next((call.latency_s for call in reversed(warmups) if call.ok), None)
    return last / statistics.median(latencies) if latencies and last is not None else None


def _row(
    target: BlockingTarget,
    name: str,
    load: Load,
    warmups: list[Call],
    timed: Timed,
    ratio: float | None,
    compilations: float | None,
    counts: Counts,
    doubt: str | None,
) -> RunRow:
    items = load.workload.num_items
    good = sum(call.ok for call in timed.calls)
    speed = timed.requests_per_second * items
    latency = Latency.of(timed.latencies_ms)
    kept = max((call.reply.cached_tokens or 0 for call in timed.calls if call.reply is not None), default=0)
    if kept and load.cache == "cold":
        doubt = f"the cache was not cold: replies told of up to {kept} kept query tokens"
    unclean = [doubt] if doubt else []
    if compilations:
        unclean.append(f"{compilations:.0f} compilations in the timed window")
    if ratio is not None and ratio > STEADY:
        unclean.append(f"the last warm-up took {ratio:.1f} times the timed median")
    if good < len(timed.calls):
        first = next(call for call in timed.calls if not call.ok)
        status, reason = "failed", f"{first.failure}: {first.message}"[:300]
    else:
        status, reason = ("warn", "; ".join(unclean)) if unclean else ("ok", None)
    return RunRow.model_validate(
        _what(target, name, load)
        | {
            "num_runs": len(timed.calls),
            "warmup_runs": len(warmups),
            "successful_runs": good,
            "success_rate": timed.success_rate,
            "total_items": good * items,
            "seconds": timed.seconds,
            "throughput_ips": speed,
            "throughput_rps": timed.requests_per_second,
            "throughput_interval": None if counts.rate is not None else _interval(speed, timed),
            "warmup_ratio": ratio,
            "timed_compilations": compilations,
            "warm_cache": doubt,
            "failure_reason_counts": timed.failures,
            "status": status,
            "reason": reason,
        }
        | ({f"latency_{field}": value for field, value in latency.model_dump().items()} if latency else {})
    )


def _interval(speed: float, timed: Timed) -> Interval | None:
    """Return the interval of the speed, as wide as that of the mean latency: callers wait for their answers."""
    if not timed.latencies_ms:
        return None
    mean = interval(timed.latencies_ms, statistics.fmean)
    return Interval(
        value=speed,
        low=speed * min(1.0, mean.value / mean.high),
        high=speed * max(1.0, mean.value / mean.low),
        confidence=mean.confidence,
    )


def _what(target: BlockingTarget, name: str, load: Load) -> dict[str, Any]:
    about = target.about
    return {
        "name": name,
        "workload": WorkloadPart.of(load.workload),
        "cache": load.cache,
        "batch_size": load.workload.num_items,
        "num_labels": len(load.workload.label_token_ids),
        "model": about.model,
        "dtype": about.dtype,
    }


def _records(name: str, warmups: list[Call], timed: Any) -> Iterator[CallRecord]:
    for number, call in enumerate(warmups):
        yield CallRecord.of(call, name, "warmup", number)
    for number, call in enumerate(timed):
        yield CallRecord.of(call, name, "timed", number)
