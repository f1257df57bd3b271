"""From records to verdicts: how much slower, how surely, and what that means.

The throughput of every workload is judged by the Hodges-Lehmann estimate of its pairs' log ratios, with the exact
confidence interval of Wilcoxon's signed-rank test (Hollander, Wolfe: Nonparametric Statistical Methods, 1999, 3.2 and
3.3). Unlike a bootstrap it holds at the high confidence that many comparisons need, with few pairs and heavy tails.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mis_bench.perf.sources import SIDES, PerfError
from mis_bench.results.records import Call, Results
from mis_bench.results.summary import summarize
from mis_bench.table import Cell, Table

Status = Literal["ok", "warn", "unsure", "fail"]
"""From good to bad. `unsure`: the machine was too noisy to exclude a regression; it counts as a warning."""

Clock = Literal["clock", "cpu"]

Times = np.ndarray
"""Milliseconds of a workload's calls, `[2, pairs, calls]`: of the base and of the head, whose turns made pairs."""

FALSE_ALARMS = 0.01
"""Most comparisons of unchanged code, as a share, that any of their intervals may mislead."""

THROUGHPUT_DROP, SINGLE_ITEM_DROP = 0.10, 0.05
"""Drops of throughput that fail, of requests with several items and with one; half of it warns."""

P95_RISE, FEWEST_CALLS = 0.15, 100
"""Rise of p95 that fails, and the calls of a side that it takes, so that five lie beyond."""

_TAIL_CONFIDENCE = 0.999
_RESAMPLES = 4000
_WORDS: dict[Status, str] = {"ok": "OK", "warn": "WARN", "unsure": "WARN: too noisy", "fail": "FAIL"}


class Change(NamedTuple):
    """A relative change, head against base, with its confidence interval; -0.1: 10 % less."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return `+1.0% (-1.9% to +3.6%)`."""
        return f"{self.value:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload.

    Attributes:
        name: Of the workload.
        wall_ms: By the clock.
        by_clock: Change of throughput by the clock.
        by_cpu: Likewise by CPU time.
        throughput: What that means.
        decided_by: Which of them decided.
        p95: Change of the latency's 95th percentile.
        tail: What that means.
        objections: What makes the figures worthless: wrong scores, compilations, failed calls, a warm cache.
    """

    name: str
    wall_ms: Times
    by_clock: Change
    by_cpu: Change
    throughput: Status
    decided_by: Clock
    p95: Change
    tail: Status
    objections: Sequence[str]

    @property
    def status(self) -> Status:
        """The worst of all."""
        return "fail" if self.objections else worst([self.throughput, self.tail])


def judge(results: Results) -> list[Compared]:
    """Judge every workload of a comparison.

    Raises:
        PerfError: a side did not answer.
    """
    names = list(dict.fromkeys(case.name.removesuffix(f" {case.target}") for case in results.plan.cases))
    confidence = 1 - FALSE_ALARMS / (2 * len(names))  # Bonferroni: two intervals a workload
    reasons = {row.case: row.reasons for row in summarize(results).rows}
    return [_compared(results, name, reasons, confidence) for name in names]


def _compared(results: Results, name: str, reasons: Mapping[str, Sequence[str]], confidence: float) -> Compared:
    cases = [results.plan.case(f"{name} {side}") for side in SIDES]
    objections = [f"{case.target}: {reason}" for case in cases for reason in reasons[case.name]]
    turns: dict[int, list[list[Call]]] = defaultdict(lambda: [[], []])
    for call in results.calls:
        for side, case in enumerate(cases):
            if call.case == case.name and call.phase == "timed" and call.error is None:
                turns[call.round][side].append(call)
    pairs = [pair for pair in turns.values() if all(len(turn) == cases[0].load.requests for turn in pair)]
    if len(pairs) < 2:
        raise PerfError(f"{name} was not measured: {'; '.join(objections) or 'there are no pairs of turns'}.")
    wall, cpu = (
        np.array([[[call.stages_ms[clock] for call in turn] for turn in side] for side in zip(*pairs, strict=True)])
        for clock in ("engine", "cpu")
    )
    by_clock, by_cpu = (change(log_ratios(times), confidence) for times in (wall, cpu))
    limit = SINGLE_ITEM_DROP if cases[0].workload.num_items == 1 else THROUGHPUT_DROP
    on_cpu = len({target.group for target in results.plan.targets}) == 1
    throughput, decided_by = decide(by_clock, by_cpu, limit, on_cpu=on_cpu)
    # A clock too noisy for the middle of the calls says less about their end.
    p95, tail = judge_tail(wall, may_fail=decided_by == "clock" and throughput != "unsure")
    return Compared(name, wall, by_clock, by_cpu, throughput, decided_by, p95, tail, objections)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst status."""
    return max(statuses, key=list(_WORDS).index)


def log_ratios(times: Times) -> np.ndarray:
    """Return the log ratios of the pairs' median times, head over base, `[pairs]`."""
    base, head = np.log(np.median(times, axis=-1))
    return head - base


def change(ratios: np.ndarray, confidence: float) -> Change:
    """Return the relative change of throughput, from log ratios of time, `[pairs]`, at least two.

    Fewer pairs than the confidence needs get what they allow, `1 - 2 ** (1 - pairs)`.
    """
    rows, columns = np.triu_indices(len(ratios))
    walsh = np.sort((ratios[rows] + ratios[columns]) / 2)
    below = np.cumsum(_signed_ranks(len(ratios)))
    rank = max(int(np.searchsorted(below, (1 - confidence) / 2, side="right")), 1)
    low, high = walsh[rank - 1], walsh[len(walsh) - rank]
    return Change(math.expm1(-float(np.median(walsh))), math.expm1(-float(high)), math.expm1(-float(low)))


def decide(wall: Change, cpu: Change, limit: float, *, on_cpu: bool) -> tuple[Status, Clock]:
    """Say what two changes of a workload's throughput mean together, by the clock and by CPU time, and which decides.

    The clock decides, since it is what callers wait. Where neighbours made it too noisy, CPU time decides, if the CPU
    is what computes: neighbours hardly change it. But CPU time does not see waiting. So it may fail a workload, and
    it may clear one only if the clock itself shows no drop: its interval holds zero, and its estimate is less than
    half of `limit`.
    """
    status = status_of(wall, limit)
    if status == "unsure" and on_cpu:
        by_cpu = status_of(cpu, limit)
        shows_no_drop = wall.low <= 0 <= wall.high and wall.value > -limit / 2
        if by_cpu == "fail" or shows_no_drop:
            return by_cpu, "cpu"
    return status, "clock"


def status_of(found: Change, limit: float) -> Status:
    """Say what a change of throughput means.

    `fail`: surely a drop of more than half of `limit`, and the whole of it is not excluded. `unsure`: the
    whole of it is not excluded, but neither is less than half of it. `warn`: surely a drop, of half of it or more.
    """
    if found.low <= -limit:
        return "fail" if found.high < -limit / 2 else "unsure"
    return "warn" if found.high < 0 and found.value <= -limit / 2 else "ok"


def judge_tail(wall_ms: Times, *, may_fail: bool) -> tuple[Change, Status]:
    """Return the change of p95, and what it means.

    A rise counts if there are enough calls, it reaches the limit, and no rise at all is excluded. The interval is the
    bootstrap's over pairs: whole pairs are drawn, since calls near each other share their neighbours.

    Args:
        wall_ms: By the clock.
        may_fail: Whether the clock was quiet; else it warns.
    """
    _, pairs, calls = wall_ms.shape
    drawn = np.random.default_rng(0).integers(pairs, size=(_RESAMPLES, pairs))
    base, head = np.percentile(wall_ms[:, [range(pairs), *drawn]], 95, axis=(-2, -1))
    value, *rises = head / base - 1
    beyond = (1 - _TAIL_CONFIDENCE) / 2
    low, high = np.quantile(rises, [beyond, 1 - beyond])
    # The bootstrap of a percentile may miss the percentile itself where few calls lie beyond.
    rise = Change(float(value), float(min(low, value)), float(max(high, value)))
    if pairs * calls < FEWEST_CALLS or rise.value < P95_RISE or rise.low <= 0:
        return rise, "ok"
    return rise, "fail" if may_fail else "warn"


def table_of(results: Results, compared: Sequence[Compared]) -> Table:
    """Return one row for every workload; changes with their confidence intervals."""
    base, head = (target.spec.removeprefix("engine of ") for target in results.plan.targets)
    return Table.of(
        f"{head[:12]}{head[40:]} against {base[:12]}",
        compared,
        {
            "workload": lambda each: each.name,
            "base ms": lambda each: float(np.median(each.wall_ms[0])),
            "head ms": lambda each: float(np.median(each.wall_ms[1])),
            "items/s": lambda each: str(each.by_clock),
            "by CPU time": lambda each: str(each.by_cpu),
            "p95": _tail,
            "pairs": lambda each: each.wall_ms.shape[1],
            "calls": lambda each: each.wall_ms[0].size,
            "verdict": _verdict,
        },
    )


def sentences(results: Results, compared: Sequence[Compared]) -> Iterator[str]:
    """Yield what a reader of the table must know, and the verdict last."""
    plan, about = results.plan, next(each.about for each in results.opened if each.about is not None)
    hardware = about.accelerators or plan.environment.hardware
    yield f"{hardware}, {about.model}, {about.dtype}; {plan.repeat} pairs of processes."
    yield from plan.notes
    yield f"Verdict: {_WORDS[worst(each.status for each in compared)]}"


def _tail(each: Compared) -> Cell:
    return f"{each.p95.value:+.0%}" + (" (too few calls)" if each.wall_ms[0].size < FEWEST_CALLS else "")


def _verdict(each: Compared) -> Cell:
    if each.objections:
        return f"{_WORDS['fail']}, {'; '.join(each.objections)}"
    by = " by CPU time" if each.decided_by == "cpu" else ""
    tail = "" if each.tail == "ok" else f", {_WORDS[each.tail]} p95"
    return f"{_WORDS[each.throughput]}{by}{tail}"


def _signed_ranks(count: int) -> np.ndarray:
    """Return the probabilities of the sums 0, 1, ... of signed ranks of so many symmetric values."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        chances = (np.append(chances, np.zeros(rank)) + np.append(np.zeros(rank), chances)) / 2
    return chances
