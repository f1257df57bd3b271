"""From records to verdicts: how much slower, how surely, and what that means.

The throughput of every workload is judged by the Hodges-Lehmann estimate of its pairs' log ratios, with the exact
confidence interval of Wilcoxon's signed-rank test (Hollander, Wolfe: Nonparametric Statistical Methods, 1999, 3.2 and
3.3). Unlike a bootstrap it holds at the high confidence that many comparisons need, with few pairs and heavy tails.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from mis_bench.perf.preset import SIDES
from mis_bench.records import Call, Results

Status = Literal["ok", "warn", "unsure", "fail"]
"""`unsure`: the machine was too noisy to exclude a regression; it counts as a warning."""

FALSE_ALARMS = 0.01
"""Most comparisons of unchanged code, as a share, that any of their intervals may mislead."""

THROUGHPUT_DROP, SINGLE_ITEM_DROP = 0.10, 0.05
"""Drops of throughput that fail, of requests with several items and with one; half of it warns."""

P95_RISE, FEWEST_CALLS = 0.15, 100
"""Rise of p95 that fails, and the calls of a side that it takes, so that five lie beyond."""

_TAIL_CONFIDENCE = 0.999
_RESAMPLES = 4000


class Change(NamedTuple):
    """A relative change, head against base, with its confidence interval; -0.1: 10 % less."""

    value: float
    low: float
    high: float


class Turn(NamedTuple):
    """Calls that one side made in a row: milliseconds by the clock, and of all its threads on the CPU."""

    wall_ms: Sequence[float]
    cpu_ms: Sequence[float]


class Pair(NamedTuple):
    """A turn of each side, one right after the other."""

    base: Turn
    head: Turn


@dataclass(frozen=True, slots=True)
class Throughput:
    """What became of a workload's throughput, by the clock and by CPU time, and which of them decided."""

    by_clock: Change
    by_cpu_time: Change
    status: Status
    by: Literal["clock", "cpu"]

    @property
    def is_quiet(self) -> bool:
        """Whether the clock was sure: one too noisy for the middle of the calls says less about their end."""
        return self.by == "clock" and self.status != "unsure"


@dataclass(frozen=True, slots=True)
class Tail:
    """What became of p95; `is_enough`: whether there were enough calls to judge it."""

    rise: Change
    is_enough: bool
    status: Status


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload.

    Attributes:
        name: Of the workload.
        base_ms: Median latency of the base.
        head_ms: Likewise of the head.
        pairs: Pairs of turns.
        calls: Of each side.
        throughput: What became of it.
        tail: What became of p95.
        objections: What makes the figures worthless: wrong scores, compilations, failed calls.
        status: The worst of all.
    """

    name: str
    base_ms: float
    head_ms: float
    pairs: int
    calls: int
    throughput: Throughput
    tail: Tail
    objections: list[str]
    status: Status


class NotMeasured(ValueError):
    """A workload was not answered, so that there is nothing to judge; the message says why."""


def judge(results: Results) -> list[Compared]:
    """Judge every workload of a comparison.

    Raises:
        NotMeasured: a side did not answer.
    """
    names = list(dict.fromkeys(case.name.removesuffix(f" {case.target}") for case in results.plan.cases))
    on_cpu = len({target.group for target in results.plan.targets}) == 1
    confidence = 1 - FALSE_ALARMS / (2 * len(names))  # Bonferroni: two intervals a workload
    return [_compared(results, name, confidence, on_cpu=on_cpu) for name in names]


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst status."""
    order: list[Status] = ["ok", "warn", "unsure", "fail"]
    return max(statuses, key=order.index)


def _compared(results: Results, name: str, confidence: float, *, on_cpu: bool) -> Compared:
    cases = {side: f"{name} {side}" for side in SIDES}
    rounds: dict[str, dict[int, list[Call]]] = {case: defaultdict(list) for case in cases.values()}
    for call in results.calls:
        if call.case in rounds and call.phase == "timed" and call.error is None:
            rounds[call.case][call.round].append(call)
    base, head = (rounds[cases[side]] for side in SIDES)
    pairs = [Pair(_turn(base[each]), _turn(head[each])) for each in sorted(base.keys() & head.keys())]
    objections = list(_objections(results, cases))
    if len(pairs) < 2:
        raise NotMeasured(f"{name} was not measured: {'; '.join(objections) or 'there are no pairs of turns'}.")
    items = next(case.workload.num_items for case in results.plan.cases if case.name == cases["base"])
    throughput = judge_throughput(
        pairs, confidence, on_cpu=on_cpu, limit=SINGLE_ITEM_DROP if items == 1 else THROUGHPUT_DROP
    )
    tail = judge_tail(pairs, may_fail=throughput.is_quiet)
    before, after = (np.concatenate([turn.wall_ms for turn in side]) for side in zip(*pairs, strict=True))
    return Compared(
        name=name,
        base_ms=float(np.median(before)),
        head_ms=float(np.median(after)),
        pairs=len(pairs),
        calls=len(before),
        throughput=throughput,
        tail=tail,
        objections=objections,
        status="fail" if objections else worst([throughput.status, tail.status]),
    )


def _turn(calls: Sequence[Call]) -> Turn:
    return Turn([call.latency_s * 1e3 for call in calls], [call.stages_ms["cpu"] for call in calls])


def _objections(results: Results, cases: dict[str, str]) -> Iterable[str]:
    limits = results.plan.limits
    for side, case in cases.items():
        for record in (*results.gates, *results.calls):
            if record.case == case and record.error is not None:
                yield f"{side}: {record.error}: {record.message}"
                break
        apart = [each for each in (*results.gates, *results.calls) if each.case == case and each.max_abs is not None]
        largest = max((each.max_abs or 0.0 for each in apart), default=0.0)
        mean = max((each.mean_abs or 0.0 for each in apart), default=0.0)
        if not limits.allow(largest, mean):
            yield f"{side}: scores differ by up to {largest:.4f}"
        compiled = sum(each.compilations or 0 for each in results.windows if (each.case, each.phase) == (case, "timed"))
        if compiled:
            yield f"{side}: compiled {compiled} programs while it was timed"


def change(log_ratios: Sequence[float], confidence: float) -> Change:
    """Return the relative change of throughput, from log ratios of time, head over base.

    Fewer pairs than the confidence needs get what they allow, `1 - 2 ** (1 - pairs)`.

    Raises:
        ValueError: there are fewer than two pairs.
    """
    count = len(log_ratios)
    if count < 2:
        raise ValueError("A comparison needs at least two pairs.")
    values = np.asarray(log_ratios)
    rows, columns = np.triu_indices(count)
    walsh = np.sort((values[rows] + values[columns]) / 2)
    below = np.cumsum(_signed_ranks(count))
    rank = max(int(np.searchsorted(below, (1 - confidence) / 2, side="right")), 1)
    low, high = walsh[rank - 1], walsh[len(walsh) - rank]
    return Change(math.expm1(-float(np.median(walsh))), math.expm1(-float(high)), math.expm1(-float(low)))


def judge_throughput(
    pairs: Sequence[Pair], confidence: float, *, on_cpu: bool, limit: float = THROUGHPUT_DROP
) -> Throughput:
    """Judge the throughput of one workload (`decide`).

    Args:
        pairs: All pairs of the workload.
        confidence: Of each interval.
        on_cpu: Whether the CPU computes.
        limit: Drop that fails, as a share.
    """
    wall = change([_log_ratio(pair.base.wall_ms, pair.head.wall_ms) for pair in pairs], confidence)
    cpu = change([_log_ratio(pair.base.cpu_ms, pair.head.cpu_ms) for pair in pairs], confidence)
    return decide(wall, cpu, limit, on_cpu=on_cpu)


def decide(wall: Change, cpu: Change, limit: float, *, on_cpu: bool) -> Throughput:
    """Say what the two changes of a workload's throughput mean together, and which of them decides.

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
            return Throughput(wall, cpu, by_cpu, "cpu")
    return Throughput(wall, cpu, status, "clock")


def status_of(found: Change, limit: float) -> Status:
    """Say what a change of throughput means.

    `fail`: surely a drop of more than half of `limit`, and the whole of it is not excluded. `unsure`: the
    whole of it is not excluded, but neither is less than half of it. `warn`: surely a drop, of half of it or more.
    """
    if found.low <= -limit:
        return "fail" if found.high < -limit / 2 else "unsure"
    return "warn" if found.high < 0 and found.value <= -limit / 2 else "ok"


def judge_tail(pairs: Sequence[Pair], *, may_fail: bool) -> Tail:
    """Judge the rise of p95.

    It counts if there are enough calls, it reaches the limit, and no rise at all is excluded. The interval is the
    bootstrap's over pairs: whole pairs are drawn, since calls near each other share their neighbours.

    Args:
        pairs: All pairs of the workload, with equally many calls in each turn.
        may_fail: Whether the clock was quiet; else it warns.
    """
    sides = [np.array([turn.wall_ms for turn in turns]) for turns in zip(*pairs, strict=True)]
    base, head = (float(np.percentile(side, 95)) for side in sides)

    def rise(index: np.ndarray, axis: int = -1) -> np.ndarray:
        drawn = np.moveaxis(index, axis, -1).astype(np.intp)
        low, high = (np.percentile(side[drawn], 95, axis=(-2, -1)) for side in sides)
        return high / low - 1

    found = stats.bootstrap(
        (np.arange(len(pairs), dtype=float),),
        rise,
        n_resamples=_RESAMPLES,
        batch=500,
        confidence_level=_TAIL_CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    value = head / base - 1
    # The bootstrap of a percentile may miss the percentile itself where few calls lie beyond.
    interval = Change(value, min(float(found.low), value), max(float(found.high), value))
    is_enough = sides[0].size >= FEWEST_CALLS
    is_risen = is_enough and value >= P95_RISE and interval.low > 0
    return Tail(interval, is_enough, "ok" if not is_risen else "fail" if may_fail else "warn")


def _log_ratio(base: Sequence[float], head: Sequence[float]) -> float:
    return math.log(float(np.median(head)) / float(np.median(base)))


def _signed_ranks(count: int) -> np.ndarray:
    """Return the probabilities of the sums 0, 1, ... of signed ranks of so many symmetric values."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances
        longer[rank:] += chances
        chances = longer / 2
    return chances
