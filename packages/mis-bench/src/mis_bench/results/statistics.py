"""Summaries of timings, and how far to trust them."""

from collections.abc import Sequence

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


class Estimate(Part):
    """A figure over rounds with its confidence interval, or the range of the rounds where they are too few for one."""

    value: float = Field(description="The median of the rounds.")
    low: float
    high: float
    confidence: float | None = Field(gt=0, lt=1, description="Confidence of the interval. Null for a range.")
    rounds: list[float] = Field(description="The figure in each.")

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
    median = float(np.median(rounds))
    if len(rounds) < FEWEST:
        return Estimate(value=median, low=min(rounds), high=max(rounds), confidence=None, rounds=list(rounds))
    from scipy import stats  # late: it takes a second, and few rounds do not need it

    found = stats.bootstrap(
        (np.asarray(rounds, np.float64),),
        np.median,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    return Estimate(value=median, low=low, high=high, confidence=confidence, rounds=list(rounds))


def ratio(above: Estimate | None, below: Estimate | None) -> Estimate | None:
    """Return the ratio of two figures that took turns, round by round; None if their rounds are not the same."""
    if above is None or below is None or len(above.rounds) != len(below.rounds):
        return None
    return estimate([a / b for a, b in zip(above.rounds, below.rounds, strict=True)])
