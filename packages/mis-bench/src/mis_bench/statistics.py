"""Summaries of timings, and how far to trust them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from mis_bench.artifact import Part

_RESAMPLES = 2000

FEWEST = 6
"""Values that an interval of 95 % needs: the range of `n` values holds the median
with a confidence of 1 - 2 ** (1 - n)."""


class Latency(Part):
    """Latency of calls in milliseconds. Percentiles are interpolated linearly, as NumPy does."""

    p50_ms: float = Field(ge=0)
    p95_ms: float = Field(ge=0)
    p99_ms: float = Field(ge=0)
    mean_ms: float = Field(ge=0)
    std_ms: float = Field(ge=0)

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> "Latency | None":
        """Summarise; None of no calls."""
        if not milliseconds:
            return None
        p50, p95, p99 = np.percentile(milliseconds, [50, 95, 99]).tolist()
        mean, std = float(np.mean(milliseconds)), float(np.std(milliseconds))
        return cls(p50_ms=p50, p95_ms=p95, p99_ms=p99, mean_ms=mean, std_ms=std)


class Interval(Part):
    """A figure with its confidence interval, or the range of its values where they are too few for one.

    Attributes:
        value: The figure.
        low: Lower end.
        high: Upper end.
        confidence: Of the interval; None of a range.
    """

    value: float
    low: float
    high: float
    confidence: float | None = Field(gt=0, lt=1)


class Estimate(Interval):
    """A figure over rounds, with `rounds`, the figure in each."""

    rounds: list[float]

    @property
    def spread(self) -> str:
        """The interval in words, or the rounds where they are too few for one."""
        if self.confidence is None:
            return ", ".join(f"{value:,.4g}" for value in self.rounds)
        return f"{self.low:,.4g} to {self.high:,.4g}"


def estimate(rounds: Sequence[float], *, confidence: float = 0.95) -> Estimate | None:
    """Return the median of rounds with its interval; None of no rounds.

    The interval is SciPy's percentile bootstrap of the median (Efron, Tibshirani: An Introduction to the Bootstrap,
    1993, chapter 13), from a fixed seed, so that it can be computed anew.
    """
    if not rounds:
        return None
    values = np.asarray(rounds, np.float64)
    median, low, high = (float(each(values)) for each in (np.median, np.min, np.max))
    if len(values) < FEWEST:
        return Estimate(value=median, low=low, high=high, confidence=None, rounds=list(rounds))
    low, high = _bootstrap((values,), lambda sample, axis: np.median(sample, axis), confidence)
    return Estimate(value=median, low=low, high=high, confidence=confidence, rounds=list(rounds))


def ratio_of_medians(above: Sequence[float], below: Sequence[float], *, confidence: float = 0.95) -> Estimate | None:
    """Return the ratio of two medians of rounds that were not measured together; None if one has no rounds.

    Rounds that were, belong in pairs: `estimate` of their ratios, which cancels what slows both.
    """
    if not above or not below:
        return None
    a, b = np.asarray(above, np.float64), np.asarray(below, np.float64)
    value = float(np.median(a) / np.median(b))
    if min(len(a), len(b)) < FEWEST:
        low, high = float(a.min() / b.max()), float(a.max() / b.min())
        return Estimate(value=value, low=low, high=high, confidence=None, rounds=[value])
    low, high = _bootstrap((a, b), lambda x, y, axis: np.median(x, axis) / np.median(y, axis), confidence)
    return Estimate(value=value, low=low, high=high, confidence=confidence, rounds=[value])


def _bootstrap(samples: tuple[np.ndarray, ...], statistic: Any, confidence: float) -> tuple[float, float]:
    from scipy import stats  # late: it takes a second, and few rounds do not need it

    found = stats.bootstrap(
        samples,
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)
