"""From pairs of turns to verdicts: how much slower, how surely, and what that means.

The throughput of every workload is judged by the Hodges-Lehmann estimate of its pairs' log ratios, with the exact
confidence interval of Wilcoxon's signed-rank test (Hollander, Wolfe: Nonparametric Statistical Methods, 1999, 3.2 and
3.3). Unlike a bootstrap it holds at the high confidence that many comparisons need, with few pairs and heavy tails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mis_bench.artifacts.perf import Judgement, Status, Tail
from mis_bench.perf.paired import Pair
from mis_bench.statistics import Interval

FALSE_ALARMS = 0.01
"""Most comparisons of unchanged code, as a share, that any of their intervals may mislead."""

THROUGHPUT_DROP, SINGLE_ITEM_DROP = 0.10, 0.05
"""Drops of throughput that fail, of requests with several items and with one; half of it warns."""

P95_RISE, P99_RISE = 0.15, 0.20
"""Rises of percentiles that fail, and that warn."""

FEWEST_BEYOND = 5
"""Calls of a side that must lie beyond a percentile before it is judged: 100 calls for p95, 500 for p99."""

_TAIL_CONFIDENCE = 0.999
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Rules:
    """How surely something must be known, by how often is looked.

    Attributes:
        workloads: How many are compared.
        looks: How often verdicts may be formed while pairs are added.
    """

    workloads: int
    looks: int

    @property
    def confidence(self) -> float:
        """Of one interval, so that all of them together mislead at most `FALSE_ALARMS` of the time (Bonferroni)."""
        return 1 - FALSE_ALARMS / (self.workloads * 2 * self.looks)


def change(log_ratios: Sequence[float], confidence: float) -> Interval:
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
    reached = float(1 - 2 * below[rank - 1])
    return Interval(
        value=math.expm1(-float(np.median(walsh))),
        low=math.expm1(-float(high)),
        high=math.expm1(-float(low)),
        confidence=min(confidence, reached),
    )


def judge(pairs: Sequence[Pair], rules: Rules, *, on_cpu: bool, limit: float = THROUGHPUT_DROP) -> Judgement:
    """Judge the throughput of one workload.

    Time by the clock decides, since it is what callers wait. Where neighbours made it too noisy to exclude a drop of
    `limit`, the CPU time of the same calls decides, if the CPU is what computes: neighbours hardly change it.

    Args:
        pairs: All pairs of the workload.
        rules: How surely.
        on_cpu: Whether the CPU computes.
        limit: Drop that fails, as a share.
    """
    wall = change([_log_ratio(pair.base.wall_s, pair.head.wall_s) for pair in pairs], rules.confidence)
    cpu = change([_log_ratio(pair.base.cpu_s, pair.head.cpu_s) for pair in pairs], rules.confidence)
    status, by = status_of(wall, limit), "clock"
    if status == "unsure" and on_cpu:
        status, by = status_of(cpu, limit), "cpu"
    return Judgement(status=status, limit=limit, by=by, throughput=wall, throughput_by_cpu_time=cpu)


def status_of(found: Interval, limit: float) -> Status:
    """Say what a change of throughput means.

    `fail`: surely a drop of more than half of `limit`, and the whole of it is not excluded. `unsure`: the
    whole of it is not excluded, but neither is less than half of it. `warn`: surely a drop, of half of it or more.
    """
    if found.low <= -limit:
        return "fail" if found.high < -limit / 2 else "unsure"
    return "warn" if found.high < 0 and found.value <= -limit / 2 else "ok"


def tail(pairs: Sequence[Pair], percentile: float, limit: float, worst: Status) -> Tail:
    """Judge a percentile of the latency.

    It counts if enough calls lie beyond it, its rise is at least `limit`, and no rise at all is excluded by the
    bootstrap over pairs (whole pairs are drawn, since calls near each other share their neighbours).

    Args:
        pairs: All pairs of the workload.
        percentile: 95 or 99.
        limit: Rise as a share.
        worst: Status of a rise that counts.
    """
    sides = [np.array([turn.wall_s for turn in turns]) for turns in zip(*pairs, strict=True)]
    base, head = (float(np.percentile(side, percentile)) for side in sides)

    def rise(index: np.ndarray, axis: int = -1) -> np.ndarray:
        drawn = np.moveaxis(index, axis, -1).astype(np.intp)
        low, high = (np.percentile(side[drawn], percentile, axis=(-2, -1)) for side in sides)
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
    interval = Interval(
        value=value, low=min(float(found.low), value), high=max(float(found.high), value), confidence=_TAIL_CONFIDENCE
    )
    calls = int(sides[0].size)
    is_enough = calls * (1 - percentile / 100) >= FEWEST_BEYOND - 1e-9
    counts = is_enough and interval.value >= limit and interval.low > 0
    return Tail(
        percentile=percentile,
        base_ms=base * 1e3,
        head_ms=head * 1e3,
        rise=interval,
        calls=calls,
        is_enough=is_enough,
        status=worst if counts else "ok",
    )


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
