"""From pairs of turns to verdicts: how much slower, how surely, and what that means.

The throughput of every workload is judged by the Hodges-Lehmann estimate of its pairs' log ratios, with the exact
confidence interval of Wilcoxon's signed-rank test (Hollander, Wolfe: Nonparametric Statistical Methods, 1999, 3.2 and
3.3). Unlike a bootstrap it holds at the high confidence that many comparisons need, with few pairs and heavy tails.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from mis_bench.artifacts.perf import Judgement, Tail
from mis_bench.perf.paired import Pair
from mis_bench.perf.rules import THROUGHPUT_DROP, Rules, decide, is_enough, reached, tail_status
from mis_bench.statistics import Interval

_TAIL_CONFIDENCE = 0.999
_RESAMPLES = 4000


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
    return Interval(
        value=math.expm1(-float(np.median(walsh))),
        low=math.expm1(-float(high)),
        high=math.expm1(-float(low)),
        confidence=reached(confidence, count),
    )


def judge(pairs: Sequence[Pair], rules: Rules, *, on_cpu: bool, limit: float = THROUGHPUT_DROP) -> Judgement:
    """Judge the throughput of one workload, by the clock and by CPU time (`rules.decide`).

    Args:
        pairs: All pairs of the workload.
        rules: How surely.
        on_cpu: Whether the CPU computes.
        limit: Drop that fails, as a share.
    """
    wall = change([_log_ratio(pair.base.wall_s, pair.head.wall_s) for pair in pairs], rules.confidence)
    cpu = change([_log_ratio(pair.base.cpu_s, pair.head.cpu_s) for pair in pairs], rules.confidence)
    status, by = decide(wall, cpu, limit, on_cpu=on_cpu)
    return Judgement(status=status, limit=limit, by=by, throughput=wall, throughput_by_cpu_time=cpu)


def tail(pairs: Sequence[Pair], percentile: float, *, may_fail: bool) -> Tail:
    """Judge a percentile of the latency (`rules.tail_status`).

    Its interval is the bootstrap's over pairs: whole pairs are drawn, since calls near each other share their
    neighbours.

    Args:
        pairs: All pairs of the workload.
        percentile: 95 or 99.
        may_fail: Whether the clock was quiet.
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
    return Tail(
        percentile=percentile,
        base_ms=base * 1e3,
        head_ms=head * 1e3,
        rise=interval,
        calls=calls,
        is_enough=is_enough(calls, percentile),
        status=tail_status(interval, percentile, calls, may_fail=may_fail),
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
