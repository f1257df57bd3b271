"""Figures of one case, computed from its raw records."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import Field

from mis_bench.artifact import Part
from mis_bench.environment import hardware_of
from mis_bench.records import Call, Case, Gate, Opened, Plan, Results, Window
from mis_bench.statistics import Estimate, Latency, estimate
from mis_bench.targets.base import About

Status = Literal["ok", "warn", "skipped", "failed"]


class Row(Part):
    """Figures of a case in one phase."""

    name: str = Field(description="Of the case; of a trace's requests of one size with that size.")
    case: str
    target: str
    phase: Literal["timed", "confirm"]
    workload: str
    num_items: int = Field(description="Of a request; in a trace's row for all sizes, of all its requests.")
    num_labels: int
    cache: Literal["cold", "warm"]
    load: str = Field(description="How requests were sent, in words.")
    chunk_items: int = Field(description="Items of a call; 0: a request was one call.")
    layout: dict[str, str | int]
    hardware: str = Field(description="By the user's word, else the target's accelerators, else this machine's.")
    model: str | None
    dtype: str | None
    rounds: int = Field(description="Windows that were measured.")
    calls: int
    failures: dict[str, int] = Field(description="Failed requests by error code.")
    seconds: float = Field(description="Of all windows.")
    items_per_second: Estimate | None = Field(description="Answered items over the time of a window.")
    requests_per_second: Estimate | None
    latency: Latency | None = Field(description="Of answered requests, from when they were due, or else sent.")
    chunk_p95_ms: float | None = Field(description="Of the calls of requests that were cut.")
    first_ms: float | None = Field(description="Of the first warm-up request.")
    warmup_ratio: float | None = Field(description="The last warm-up request over the timed median.")
    goodput_rps: float | None = Field(description="Requests a second that were answered within the objective.")
    ratio: Estimate | None = Field(default=None, description="Items per second over the reference's, the same calls.")
    items_per_usd: float | None
    compilations: int | None = Field(description="In all windows, where the target tells.")
    steps_per_call: float | None
    cached_tokens: int | None = Field(description="Most that a reply told of.")
    memory_bytes: int | None = Field(description="Resident, at most.")
    device_memory_bytes: int | None
    max_abs: float | None = Field(description="Largest difference from the reference's scores.")
    mean_abs: float | None = Field(description="Largest mean difference of a request.")
    isolation_abs: float | None = Field(description="Largest difference of an item alone from it among others.")
    status: Status = "ok"
    reasons: list[str] = Field(default=[], description="For the status.")
    objections: list[str] = Field(default=[], description="Why it may not win; empty if it may.")
    wins: bool = False

    @property
    def success_rate(self) -> float:
        """Share of requests that were answered."""
        return 1 - sum(self.failures.values()) / self.calls if self.calls else 0.0

    @property
    def is_whole(self) -> bool:
        """Whether it stands for its case, not for one size of a trace."""
        return self.name in (self.case, f"{self.case} confirmed")

    @property
    def conditions(self) -> tuple[object, ...]:
        """What must be alike for speeds to be compared. Items may differ: some targets are asked for a few only."""
        return self.workload, self.cache, self.load, self.chunk_items, self.phase

    @property
    def speed(self) -> float:
        """Items per second; 0 of a row without timings."""
        return 0.0 if self.items_per_second is None else self.items_per_second.value


@dataclass(slots=True)
class Evidence:
    """Records of one case.

    Attributes:
        plan: What they belong to.
        case: Which.
        about: What its target says of itself, if it was opened.
        unavailable: Why its target could not be opened, or None.
        warmups, afterwards: Requests outside of rounds.
        calls: Requests of rounds, by phase.
        windows: Of rounds, by phase.
        gates: Checks of its scores.
    """

    plan: Plan
    case: Case
    about: About | None = None
    unavailable: str | None = None
    warmups: list[Call] = field(default_factory=list)
    afterwards: list[Call] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    windows: dict[str, list[Window]] = field(default_factory=lambda: defaultdict(list))
    gates: list[Gate] = field(default_factory=list)


def evidence(results: Results) -> dict[str, Evidence]:
    """Sort records by case."""
    found = {case.name: Evidence(results.plan, case) for case in results.plan.cases}
    opened: dict[str, Opened] = {}
    for record in results.records:
        if isinstance(record, Opened):
            opened[record.target] = record
            continue
        mine = found[record.case]
        if isinstance(record, Gate):
            mine.gates.append(record)
        elif isinstance(record, Window):
            mine.windows[record.phase].append(record)
        elif record.phase == "warmup":
            mine.warmups.append(record)
        elif record.phase == "afterwards":
            mine.afterwards.append(record)
        else:
            mine.calls[record.phase].append(record)
    for each in found.values():
        if each.case.target in opened:
            last = opened[each.case.target]
            each.about, each.unavailable = last.about, last.unavailable
    return found


def rows_of(found: Evidence) -> list[Row]:
    """Return the rows of a case: one, one more for its confirmation, and one for every size of a trace's requests."""
    rows = [_row(found, "timed", found.case.name, found.calls["timed"])]
    if found.windows["confirm"]:
        rows.append(_row(found, "confirm", f"{found.case.name} confirmed", found.calls["confirm"]))
    sizes = sorted({call.items for call in found.calls["timed"]})
    if found.plan.preset == "trace":
        for size in sizes:
            calls = [call for call in found.calls["timed"] if call.items == size]
            rows.append(_row(found, "timed", f"{found.case.name} of {size}", calls, num_items=size))
    return rows


def _row(
    found: Evidence, phase: Literal["timed", "confirm"], name: str, calls: Sequence[Call], num_items: int | None = None
) -> Row:
    plan, case, windows = found.plan, found.case, found.windows[phase]
    good = [call for call in calls if call.error is None]
    latencies = [call.latency_s * 1e3 for call in good]
    latency = Latency.of(latencies)
    items, requests = _per_second(windows, good)
    target = next(target for target in plan.targets if target.name == case.target)
    last = next((call.latency_s * 1e3 for call in reversed(found.warmups) if call.error is None), None)
    seconds = sum(window.seconds for window in windows)
    return Row(
        name=name,
        case=case.name,
        target=case.target,
        phase=phase,
        workload=case.workload.name,
        num_items=num_items or case.workload.num_items,
        num_labels=case.workload.num_labels,
        cache=case.cache,
        load=load_in_words(case),
        chunk_items=case.chunk_items,
        layout=case.layout,
        hardware=hardware_of(target.hardware, found.about, plan.environment.hardware),
        model=found.about.model if found.about else None,
        dtype=found.about.dtype if found.about else None,
        rounds=len(windows),
        calls=len(calls),
        failures=dict(Counter(call.error for call in calls if call.error is not None)),
        seconds=seconds,
        items_per_second=items,
        requests_per_second=requests,
        latency=latency,
        chunk_p95_ms=_percentile([1e3 * chunk for call in good for chunk in call.chunks_s], 95),
        first_ms=found.warmups[0].latency_s * 1e3 if found.warmups and found.warmups[0].error is None else None,
        warmup_ratio=last / latency.p50_ms if last and latency else None,
        goodput_rps=_within(latencies, plan.slo_p99_ms, seconds),
        items_per_usd=items.value * 3600 / target.hourly_cost_usd if items and target.hourly_cost_usd else None,
        compilations=_sum([window.compilations for window in windows]),
        steps_per_call=_steps_per_call(windows),
        cached_tokens=max((call.cached_tokens for call in good if call.cached_tokens is not None), default=None),
        memory_bytes=max((each.memory_bytes for each in windows if each.memory_bytes), default=None),
        device_memory_bytes=max(
            (each.device_memory_bytes for each in windows if each.device_memory_bytes), default=None
        ),
        **_differences(found, good),
    )


def load_in_words(case: Case) -> str:
    """Return how a case's requests are sent: `1 caller`, `4/s`, `4/s, at most 8 at once`."""
    load = case.load
    callers = f"{load.max_concurrency} caller{'' if load.max_concurrency == 1 else 's'}"
    if load.rate is None and load.max_concurrency is None:
        return "as recorded"
    if load.rate is None:
        return callers
    return f"{load.rate:g}/s" + (f", at most {load.max_concurrency} at once" if load.max_concurrency else "")


def _per_second(windows: Sequence[Window], good: Sequence[Call]) -> tuple[Estimate | None, Estimate | None]:
    """Return items and requests per second, over rounds in which something was answered."""
    items: Counter[int] = Counter()
    requests: Counter[int] = Counter()
    for call in good:
        items[call.round] += call.items
        requests[call.round] += 1
    mine = [window for window in windows if items[window.round] and window.seconds]
    return (
        estimate([items[window.round] / window.seconds for window in mine]),
        estimate([requests[window.round] / window.seconds for window in mine]),
    )


def _differences(found: Evidence, good: Sequence[Call]) -> dict[str, Any]:
    correct = [gate for gate in found.gates if gate.name == "correctness"]
    apart = [each for each in (*correct, *good) if each.max_abs is not None]
    alone = [gate.max_abs for gate in found.gates if gate.name == "isolation" and gate.max_abs is not None]
    return {
        "max_abs": max((each.max_abs for each in apart if each.max_abs is not None), default=None),
        "mean_abs": max((each.mean_abs for each in apart if each.mean_abs is not None), default=None),
        "isolation_abs": max(alone, default=None),
    }


def _within(latencies_ms: Sequence[float], objective_ms: float | None, seconds: float) -> float | None:
    if objective_ms is None or not seconds:
        return None
    return sum(latency <= objective_ms for latency in latencies_ms) / seconds


def _steps_per_call(windows: Sequence[Window]) -> float | None:
    steps, calls = _sum([window.steps for window in windows]), sum(window.calls for window in windows)
    return None if steps is None or not calls else steps / calls


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
