"""How close is close: what rounding adds up to, a table of scores by dtype, and the comparisons that use it.

CPUs add in orders of their own: how wide a vector is, whether a product is rounded before it is added. So no tolerance
is what one machine happened to show; each names the sums that it stands for (`rounding`).

Scores are compared as log-probabilities and as softmaxes over the labels, never as raw probabilities,
where two wrong values near zero look alike. Use checkpoints whose logits spread (`tiny_checkpoint`).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

What = Literal["label_softmax", "probability", "logprob"]
Reference = Literal["transformers", "pointwise"]

ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
"""Largest relative error of rounding one number to each type."""


def rounding(dtype: str, *, terms: int, chained: int = 1, magnitude: float = 1.0) -> float:
    """Return how far two orders of adding the same numbers may lie apart.

    Each addition errs by up to one roundoff of what is there, with either sign, so errors grow like the root of their
    number (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2.8). This is four times that:
    bounds without chance, which grow like the number itself, would hide faults.

    Args:
        dtype: What is rounded to: `float32` or `bfloat16`.
        terms: Summands of the longest sum.
        chained: How many such sums follow one another, each of results of the one before.
        magnitude: The largest number among the results.
    """
    return 4 * ROUNDOFF[dtype] * (terms * chained) ** 0.5 * magnitude


TINY_LOGITS = rounding("float32", terms=128, chained=13, magnitude=10)
"""Absolute, of logits and log-probabilities of a `tiny_checkpoint` in float32.

Its widest product has 128 summands. Three layers have four products one after another, and the head follows. Logits
reach 10.
"""

TINY_PROBABILITIES = TINY_LOGITS / 2
"""Absolute, of probabilities of a `tiny_checkpoint`: a softmax changes by up to half of what its logits change by."""

ATTENTION = {
    "float32": rounding("float32", terms=256, chained=2, magnitude=4),
    "bfloat16": rounding("bfloat16", terms=1),
}
"""Absolute and relative, of attention to standard normal numbers, which reach 4, by the type of what it returns.

In float32: a logit of a head of up to 256 numbers, then a mean of values. In bfloat16 both are sums in float32, and
what counts is that weights and results are rounded.
"""


ROUNDED_ONCE = rounding("bfloat16", terms=1)
"""Absolute and relative, of what is computed in float32, reaches about 1, and is rounded to bfloat16 at the end."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest differences allowed between two computations of the same scores.

    Attributes:
        logprob: Absolute, of full-vocabulary log-probabilities: relative, of probabilities.
        softmax: Absolute, of softmaxes over the labels.
        softmax_mean: Mean of the absolute differences of softmaxes over the labels.
    """

    logprob: float
    softmax: float
    softmax_mean: float


TOLERANCES: dict[tuple[str, Reference], Tolerance] = {
    # Transformers computes each layer's norms, rotations and softmaxes in another way, too.
    ("float32", "transformers"): Tolerance(logprob=10 * TINY_LOGITS, softmax=1e-4, softmax_mean=1e-4),
    # What MIS promises: a tenth of what other orders of the same sums could add up to.
    ("float32", "pointwise"): Tolerance(logprob=1e-5, softmax=1e-5, softmax_mean=1e-5),
    # bfloat16 keeps 8 bits: a logit of 10 is off by up to 0.03 in its last rounding alone.
    ("bfloat16", "transformers"): Tolerance(logprob=0.15, softmax=0.02, softmax_mean=0.01),
    ("bfloat16", "pointwise"): Tolerance(logprob=0.15, softmax=0.02, softmax_mean=0.01),
}


def assert_scores_close(
    actual: Any, expected: Any, dtype: str, what: What = "label_softmax", reference: Reference = "transformers"
) -> None:
    """Fail unless two arrays of scores agree within the table; the message says where they do not.

    Args:
        actual: Scores under test, shape [items, labels]; anything NumPy converts.
        expected: Scores to agree with, same shape. NaN (no such label) must meet NaN.
        dtype: `float32` or `bfloat16`: what the model under test computes in.
        what: What the numbers are: `label_softmax` (`apply_softmax=True`), `probability`
            (`apply_softmax=False`) or `logprob` (`token_logprobs`).
        reference: `transformers` for another implementation, `pointwise` for MIS's own serial scores.

    Raises:
        AssertionError: names the worst item and label, both values, and the limit.
    """
    tolerance = TOLERANCES[dtype, reference]
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"shapes differ: {actual.shape}, expected {expected.shape}"
    assert actual.size, "there are no scores to compare"
    missing = np.isnan(expected)
    _assert_none(np.isnan(actual) != missing, "NaN in one array only", actual, expected)
    if what == "label_softmax":
        sums = np.nansum(actual, axis=-1)
        assert np.all(np.abs(sums - 1) < 1e-3), (
            f"rows of a softmax must sum to 1; item {np.argmax(np.abs(sums - 1))} does not"
        )
        _assert_softmax_close(actual, expected, tolerance)
        return
    if what == "probability":
        _assert_none((actual <= 0) | (expected <= 0), "a probability is not positive", actual, expected)
        actual, expected = np.log(actual), np.log(expected)
    _assert_within(actual, expected, tolerance.logprob, "log-probability")
    _assert_softmax_close(_label_softmax(actual), _label_softmax(expected), tolerance)


def _assert_softmax_close(actual: np.ndarray, expected: np.ndarray, tolerance: Tolerance) -> None:
    _assert_within(actual, expected, tolerance.softmax, "label softmax")
    mean = np.nanmean(np.abs(actual - expected))
    assert mean <= tolerance.softmax_mean, f"label softmax: mean difference {mean:.3g} > {tolerance.softmax_mean:g}"


def _assert_within(actual: np.ndarray, expected: np.ndarray, limit: float, what: str) -> None:
    difference = np.nan_to_num(np.abs(actual - expected))
    bad = difference > limit
    if bad.any():
        item, label = np.unravel_index(np.argmax(difference), difference.shape)
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} values differ by more than {limit:g}; "
            f"worst at item {item}, label {label}: {actual[item, label]:.7g}, "
            f"expected {expected[item, label]:.7g} (difference {difference[item, label]:.3g})"
        )


def _assert_none(bad: np.ndarray, problem: str, actual: np.ndarray, expected: np.ndarray) -> None:
    if bad.any():
        item, label = np.argwhere(bad)[0]
        raise AssertionError(
            f"{problem}: item {item}, label {label}: {actual[item, label]}, expected {expected[item, label]}"
        )


def _label_softmax(logprobs: np.ndarray) -> np.ndarray:
    weights = np.exp(logprobs - np.nanmax(logprobs, axis=-1, keepdims=True))
    return weights / np.nansum(weights, axis=-1, keepdims=True)
