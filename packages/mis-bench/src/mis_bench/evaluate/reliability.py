"""How probabilities compare with how often they are right: expected calibration errors, and what a diagram shows."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtr

from mis_bench.evaluate.answers import Answers
from mis_bench.evaluate.resampling import Resampled, Values, Weights

BINS = 15

_DIGITS = 9  # of places among bins; what is beyond is rounding


class Predicted(NamedTuple):
    """Probabilities of something that is true or not.

    Attributes:
        probability: That it is.
        outcome: 1 if it is.
    """

    probability: Float64[np.ndarray, " answers"]
    outcome: Float64[np.ndarray, " answers"]


def predicted(answers: Answers) -> Predicted:
    """Return what is compared: of two classes the probability of the second, of more that of the decision."""
    if answers.is_binary:
        return Predicted(answers.probabilities[:, 1], (answers.truth == 1).astype(np.float64))
    return Predicted(answers.confidence, answers.correct)


def ece(found: Predicted, weight: Float64[np.ndarray, " answers"], bins: int = BINS) -> Resampled:
    """Return the expected calibration error over bins of equal weight, corrected for its bias; at least 0.

    The mean over bins of the distance between mean probability and mean outcome is too large, since outcomes scatter.
    As Kumar, Liang and Ma (Verified uncertainty calibration, 2019, arXiv:1909.10155) do in their code for absolute
    distances, what normal scatter around what was found adds is subtracted, here in closed form: the result of a bin
    is `2 |d| - E|d + s z|`, with `s` the standard error of its mean outcome. Of perfect probabilities that takes two
    fifths of the bias, of others more. Roelofs et al. (2022, arXiv:2012.08668) found bins of equal mass less biased
    than those of equal width.

    Equal probabilities are in one bin, whatever the order of answers. Bins are made anew for each resample.

    Args:
        found: Probabilities and outcomes.
        weight: Of the answers as they were measured; says how many independent ones a bin is worth.
        bins: Their number.
    """
    order = np.argsort(found.probability, kind="stable")
    probability, outcome, own = found.probability[order], found.outcome[order], weight[order]
    starts = np.flatnonzero(np.diff(probability, prepend=np.nan) != 0)
    parts = (own, own * probability, own * outcome, own * own)

    def resampled(weights: Weights) -> Values:
        counts = weights[:, order] / own
        # What is equal goes into a bin together.
        mass, of_probability, of_outcome, squared = (np.add.reduceat(counts * each, starts, axis=1) for each in parts)
        ends = np.cumsum(mass, axis=1)
        middle = (ends - mass / 2) / ends[:, -1:] * bins
        return _corrected(_bin_of(middle, bins), bins, mass, of_probability, of_outcome, squared)

    return resampled


def ece_width(found: Predicted, bins: int = BINS) -> Resampled:
    """Return the expected calibration error over bins of equal width (Guo et al., 2017, arXiv:1706.04599), uncorrected.

    What lies between two bins is in the one nearer the middle.
    """
    index = _bin_of(found.probability * bins, bins)
    is_in = np.zeros((len(index), bins))
    is_in[np.arange(len(index)), index] = 1.0
    distance = is_in * (found.probability - found.outcome)[:, None]

    def resampled(weights: Weights) -> Values:
        return np.abs(weights @ distance).sum(axis=1) / weights.sum(axis=1)

    return resampled


class Bin(NamedTuple):
    """A bin of a reliability diagram.

    Attributes:
        share: Of the weight of all answers.
        probability: Mean of its answers.
        outcome: Mean of its answers: how often it was so.
    """

    share: float
    probability: float
    outcome: float


def diagram(found: Predicted, weight: Float64[np.ndarray, " answers"], bins: int = BINS) -> list[Bin]:
    """Return the bins of equal weight that are not empty, those of `ece`."""
    unique, inverse = np.unique(found.probability, return_inverse=True)
    mass = np.bincount(inverse, weight, len(unique))
    middle = (np.cumsum(mass) - mass / 2) / mass.sum() * bins
    index = _bin_of(middle, bins)[inverse]
    masses, probabilities, outcomes = (
        np.bincount(index, each, bins) for each in (weight, weight * found.probability, weight * found.outcome)
    )
    return [
        Bin(float(mass / weight.sum()), float(probability / mass), float(outcome / mass))
        for mass, probability, outcome in zip(masses, probabilities, outcomes, strict=True)
        if mass > 0
    ]


def _bin_of(where: Float64[np.ndarray, "*rows"], bins: int) -> Int64[np.ndarray, "*rows"]:
    """Return the bins of places between 0 and the number of bins.

    What lies between two is in the one nearer the middle, so that the same is found from either end.
    """
    exact = np.round(where, _DIGITS)
    return np.clip(np.where(exact > bins / 2, np.ceil(exact) - 1, np.floor(exact)), 0, bins - 1).astype(np.int64)


def _corrected(
    index: Int64[np.ndarray, "resamples answers"],
    bins: int,
    mass: Weights,
    of_probability: Weights,
    of_outcome: Weights,
    squared: Weights,
) -> Values:
    """Return corrected errors of the sums of what is in each bin."""
    rows = len(index)
    flat = (index + bins * np.arange(rows)[:, None]).ravel()
    sums = (np.bincount(flat, each.ravel(), rows * bins) for each in (mass, of_probability, of_outcome, squared))
    mass, of_probability, of_outcome, squared = (each.reshape(rows, bins) for each in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.clip(of_outcome / mass, 0.0, 1.0)
        distance = np.abs(of_probability / mass - rate)
        size = mass**2 / squared  # as many answers of equal weight would scatter so
        deviation = np.sqrt(rate * (1 - rate) / size)
        scattered = deviation * math.sqrt(2 / math.pi) * np.exp(-((distance / deviation) ** 2) / 2) + distance * (
            1 - 2 * ndtr(-distance / deviation)
        )
        corrected = np.where(deviation > 0, 2 * distance - scattered, distance)
    each = np.where(mass > 0, mass * corrected, 0.0)
    return np.maximum(each.sum(axis=1) / mass.sum(axis=1), 0.0)
