"""Resampling by cluster, and intervals of figures made of it."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.stats import norm

RESAMPLES = 2000
"""Resamples of an interval."""

FEWEST_CLUSTERS = 10
"""Fewer are no ground for an interval."""

CONFIDENCE = 0.95

_BLOCKS = 500
_ELEMENTS = 64_000  # of a matrix of weights: half a megabyte, which stays in a cache
_LEAST_DEFINED = 0.95  # share of the resamples in which a figure must be defined

Weights = Float64[np.ndarray, "resamples answers"]
Values = Float64[np.ndarray, " resamples"]
Resampled = Callable[[Weights], Values]
"""A figure under the weights of each resample; NaN where it is not defined."""


class Interval(NamedTuple):
    """A figure with its interval of 95 %; None where there is none.

    Attributes:
        value: Of the data.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


class ResampledFigure(NamedTuple):
    """A figure of every resample, and of the data without each block of clusters.

    Attributes:
        resampled: With clusters drawn with replacement.
        without: With a block of clusters left out.
    """

    resampled: Values
    without: Values

    def minus(self, other: "ResampledFigure") -> "ResampledFigure":
        """Return the differences, of two figures under the same resamples."""
        return ResampledFigure(self.resampled - other.resampled, self.without - other.without)


def replicas(
    figures: Mapping[str, Resampled],
    weight: Float64[np.ndarray, " answers"],
    cluster: Int64[np.ndarray, " answers"],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, ResampledFigure]:
    """Compute figures of resamples of the clusters; nothing of fewer than `FEWEST_CLUSTERS`.

    The same clusters and seed give the same resamples, whatever the figures are, so that differences are paired.
    """
    _, cluster = np.unique(cluster, return_inverse=True)
    num_clusters = int(cluster.max(initial=-1)) + 1
    if num_clusters < FEWEST_CLUSTERS:
        return {}
    found: dict[str, tuple[list[Values], list[Values]]] = {name: ([], []) for name in figures}
    for part, made in enumerate(
        (_drawn(num_clusters, len(weight), resamples, seed), _without(num_clusters, len(weight)))
    ):
        for counts in made:
            weights = counts[:, cluster] * weight
            for name, figure in figures.items():
                found[name][part].append(figure(weights))
    return {name: ResampledFigure(*map(np.concatenate, parts)) for name, parts in found.items()}


def interval(value: float, found: ResampledFigure | None, confidence: float = CONFIDENCE) -> Interval:
    """Return the BCa interval of a figure (Efron: Better bootstrap confidence intervals, 1987).

    BCa is the percentile interval, moved by the bias of the resamples and by the figure's acceleration, which is
    estimated without one block of clusters at a time. A figure that is the same in every resample has an interval of no
    width. There is no interval where a figure is not defined in more than 5 % of the resamples.
    """
    if found is None:
        return Interval(value)
    resampled = found.resampled[np.isfinite(found.resampled)]
    without = found.without[np.isfinite(found.without)]
    if len(resampled) < _LEAST_DEFINED * len(found.resampled) or not np.isfinite(value):
        return Interval(value)
    low, high = _bca_levels(value, resampled, without, confidence)
    ends = np.quantile(resampled, [low, high])
    return Interval(value, float(ends[0]), float(ends[1]))


def _bca_levels(value: float, resampled: Values, without: Values, confidence: float) -> tuple[float, float]:
    """Return the shares of resamples below the ends of an interval."""
    below = (np.mean(resampled < value) + np.mean(resampled <= value)) / 2
    bias = norm.ppf(np.clip(below, 1 / (2 * len(resampled)), 1 - 1 / (2 * len(resampled))))
    spread = without.mean() - without if len(without) else np.zeros(1)
    scale = 6 * (spread**2).sum() ** 1.5
    acceleration = float((spread**3).sum() / scale) if scale > 0 else 0.0
    wanted = norm.ppf([(1 - confidence) / 2, (1 + confidence) / 2])
    moved = bias + wanted
    low, high = norm.cdf(bias + moved / (1 - acceleration * moved))
    return float(low), float(high)


def _drawn(
    num_clusters: int, size: int, resamples: int, seed: int
) -> Iterator[Float64[np.ndarray, "resamples clusters"]]:
    """Yield how often each cluster is in each resample, so many resamples at a time that they fit memory."""
    rng = np.random.default_rng(seed)
    at_once = max(1, _ELEMENTS // max(size, num_clusters))
    for begin in range(0, resamples, at_once):
        count = min(at_once, resamples - begin)
        drawn = rng.integers(num_clusters, size=(count, num_clusters))
        drawn += num_clusters * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * num_clusters)
        yield counts.reshape(count, num_clusters).astype(np.float64)


def _without(num_clusters: int, size: int) -> Iterator[Float64[np.ndarray, "resamples clusters"]]:
    """Yield counts of 1, and of 0 for a block of clusters; neighbours are in different blocks."""
    num_blocks = min(num_clusters, _BLOCKS)
    block = np.arange(num_clusters) % num_blocks
    at_once = max(1, _ELEMENTS // max(size, num_clusters))
    for begin in range(0, num_blocks, at_once):
        left_out = np.arange(begin, min(begin + at_once, num_blocks))
        yield (block != left_out[:, None]).astype(np.float64)
