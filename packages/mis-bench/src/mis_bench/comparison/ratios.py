"""Ratios of speeds with their intervals, and items for a dollar."""

from collections.abc import Sequence

import numpy as np

from mis_bench.statistics import FEWEST, Interval, interval

_RESAMPLES = 2000


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], *, paired: bool, confidence: float = 0.95
) -> Interval:
    """Return the ratio of two speeds with its percentile bootstrap interval, or its range where runs are few.

    Args:
        numerators: Items per second of runs.
        denominators: Likewise, of the reference.
        paired: Whether runs of equal index were measured in one round: then the median of their ratios, which cancels
            what slows both; else the ratio of the medians.
        confidence: Of the interval.
    """
    above, below = np.asarray(numerators, float), np.asarray(denominators, float)
    if paired:
        return interval((above / below).tolist(), confidence=confidence)
    value = float(np.median(above) / np.median(below))
    if min(len(above), len(below)) < FEWEST:
        low, high = above.min() / below.max(), above.max() / below.min()
        return Interval(value=value, low=float(low), high=float(high), confidence=None)
    from scipy import stats  # late: it takes a second

    found = stats.bootstrap(
        (above, below),
        lambda a, b, axis: np.median(a, axis) / np.median(b, axis),
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(value=value, low=float(found.low), high=float(found.high), confidence=confidence)


def items_per_usd(items_per_second: float | None, hourly_cost_usd: float | None) -> float | None:
    """Return items scored for one dollar, if both are known."""
    if items_per_second is None or hourly_cost_usd is None:
        return None
    return items_per_second * 3600 / hourly_cost_usd
