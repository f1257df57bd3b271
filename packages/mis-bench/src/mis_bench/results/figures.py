"""Figures of one case, computed from its raw records."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import Field

from mis_bench.artifact import Part
from mis_bench.environment import hardware_of
from mis_bench.results.plan import Case, LoadLevel
from mis_bench.results.records import Call, Results, Window
from mis_bench.results.statistics import Estimate, Latency, estimate

Status = Literal["ok", "warn", "skipped", "failed"]


class Row(Part):
    """Figures of a case in one phase."""

    name: str = Field(description="Name of the case. For a trace's requests of one size, with that size.")
    case: str
    target: str
    phase: Literal["timed", "confirm"]
    workload: str
    num_items: int = Field(description="Items of a request. In a trace's row for all sizes, items of all its requests.")
    num_labels: int
    cache: Literal["cold", "warm"]
    load: str = Field(description="How requests were sent, in words.")
    chunk_items: int = Field(description="Items of a call; 0: a request was one call.")
    hardware: str = Field(
        description="Hardware given by --hardware, else the target's accelerators, else this machine."
    )
    model: str | None
    dtype: str | None
    rounds: int = Field(description="Windows that were measured.")
    calls: int
    failures: dict[str, int] = Field(description="Failed requests by error code.")
    items_per_second: Estimate | None = Field(description="Answered items over the time of a window.")
    requests_per_second: Estimate | None
    latency: Latency | None = Field(
        description="Latency of answered requests, from the time when they were due, or else sent."
    )
    first_ms: float | None = Field(description="Milliseconds of the first answered warm-up request.")
    warmup_ratio: float | None = Field(description="Ratio of the last warm-up request to the timed median.")
    goodput_rps: float | None = Field(description="Requests a second that were answered within the objective.")
    limit_share: float | None = Field(
        default=None, description="Share of the speed that the best product rate would allow."
    )
    ratio: Estimate | None = Field(
        default=None, description="Ratio of items per second to the reference's, for the same calls."
    )
    items_per_usd: float | None
    compilations: int | None = Field(description="Compilations in all windows, if the target reports them.")
    steps_per_call: float | None
    cached_tokens: int | None = Field(description="Most cached tokens that a reply reported.")
    max_abs: float | None = Field(description="Largest difference from the reference's scores.")
    mean_abs: float | None = Field(description="Largest mean difference of a request.")
    status: Status = "ok"
    reasons: list[str] = Field(default=[], description="Reasons for the status.")
    objections: list[str] = Field(default=[], description="Reasons why the row may not win. Empty if it may.")
    wins: bool = False

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


def rows_of(case: Case, mine: Results) -> list[Row]:
    """Return the rows of a case: one, one more for its confirmation, and one for every size of a trace's requests."""
    timed = mine.asked("timed")
    rows = [_row(case, mine, "timed", case.name, timed)]
    if confirmed := mine.asked("confirm"):
        rows.append(_row(case, mine, "confirm", f"{case.name} confirmed", confirmed))
    for size in sorted({call.items for call in timed}) if mine.plan.preset == "trace" else ():
        calls = [call for call in timed if call.items == size]
        rows.append(_row(case, mine, "timed", f"{case.name} of {size}", calls, num_items=size))
    return rows


def _row(
    case: Case,
    mine: Results,
    phase: Literal["timed", "confirm"],
    name: str,
    calls: Sequence[Call],
    num_items: int | None = None,
) -> Row:
    windows = [window for window in mine.windows if window.phase == phase]
    steps = _sum(window.steps for window in windows)
    good = [call for call in calls if call.error is None]
    milliseconds = [call.latency_s * 1e3 for call in good]
    latency, items = Latency.of(milliseconds), _per_second(windows, good, lambda call: call.items)
    target, objective_ms = mine.plan.target(case.target), mine.plan.slo_p99_ms
    about = mine.opened[-1].about if mine.opened else None
    within = None
    if objective_ms is not None:
        within = _per_second(windows, good, lambda call: call.latency_s * 1e3 <= objective_ms)
    warmups = [call.latency_s * 1e3 for call in mine.asked("warmup") if call.error is None]
    compared = [*(gate for gate in mine.gates if gate.name == "correctness"), *good]
    return Row(
        name=name,
        case=case.name,
        target=case.target,
        phase=phase,
        workload=case.workload.name,
        num_items=num_items or case.workload.num_items,
        num_labels=case.workload.num_labels,
        cache=case.cache,
        load=_in_words(case.load),
        chunk_items=case.chunk_items,
        hardware=hardware_of(target.hardware, about, mine.plan.environment.hardware),
        model=about.model if about else None,
        dtype=about.dtype if about else None,
        rounds=len(windows),
        calls=len(calls),
        failures=dict(Counter(call.error for call in calls if call.error is not None)),
        items_per_second=items,
        requests_per_second=_per_second(windows, good, lambda _: 1),
        latency=latency,
        first_ms=next(iter(warmups), None),
        warmup_ratio=warmups[-1] / latency.p50_ms if warmups and latency else None,
        goodput_rps=within.value if within else None,
        items_per_usd=items.value * 3600 / target.hourly_cost_usd if items and target.hourly_cost_usd else None,
        compilations=_sum(window.compilations for window in windows),
        steps_per_call=None if steps is None else steps / max(1, sum(window.calls for window in windows)),
        cached_tokens=max((call.cached_tokens for call in good if call.cached_tokens is not None), default=None),
        max_abs=max((each.max_abs for each in compared if each.max_abs is not None), default=None),
        mean_abs=max((each.mean_abs for each in compared if each.mean_abs is not None), default=None),
    )


def _in_words(load: LoadLevel) -> str:
    """Return how requests are sent: `1 caller`, `4/s`, `4/s, at most 8 at once`, `0.5 of 8 callers' rate`."""
    if load.rate_share is not None:
        return f"{load.rate_share:g} of {load.rate_callers} callers' rate"
    if load.rate is not None:
        return f"{load.rate:g}/s" + (f", at most {load.max_concurrency} at once" if load.max_concurrency else "")
    if load.max_concurrency is None:
        return "as recorded"
    return f"{load.max_concurrency} caller{'' if load.max_concurrency == 1 else 's'}"


def _per_second(windows: Sequence[Window], good: Sequence[Call], count: Callable[[Call], int]) -> Estimate | None:
    """Return a count per second, over rounds in which something was answered."""
    answered: dict[int, int] = {}
    for call in good:
        answered[call.round] = answered.get(call.round, 0) + count(call)
    return estimate(
        [answered[each.round] / each.seconds for each in windows if each.round in answered and each.seconds]
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
