"""What is fitted for one kind of distribution: its parts in the order they are applied, and what they are worth."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from jaxtyping import Float64
from msgspec import Meta
from scipy.special import softmax

from mis_core.calibration.identity import Identity, digest_of

TIE_SHARE = 2.0**-12
"""How much of a probability behind a curve is what it was before, so that equal ones keep the order they had."""

_MOST_POINTS = 4096
MAX_LABELS = 1024
"""Most labels of a distribution."""

_Count = Annotated[int, Meta(ge=0)]
_Bias = Annotated[float, Meta(ge=-1000, le=1000)]
_Probability = Annotated[float, Meta(ge=0, le=1)]
_Points = Annotated[tuple[_Probability, ...], Meta(min_length=2, max_length=_MOST_POINTS)]


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first part, on label logits: temperature scaling (arXiv 1706.04599, section 4.2), and a bias for each label.

    Of two labels both together are Platt scaling (Platt, Advances in Large Margin Classifiers, 1999).

    Attributes:
        temperature: What logits are divided by.
        bias: What is then added to that of each label; none of any.
    """

    temperature: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    bias: Annotated[tuple[_Bias, ...], Meta(max_length=MAX_LABELS)] = ()


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second part, on the probability of a label: an isotonic regression, linear between the centres of its steps.

    Attributes:
        before: Probabilities, rising strictly.
        after: What they become, never falling; beyond the ends as at the ends.
    """

    before: _Points
    after: _Points

    def __post_init__(self) -> None:
        if len(self.before) != len(self.after):
            raise ValueError("before and after must have the same number of points")
        if (np.diff(self.before) <= 0).any() or (np.diff(self.after) < 0).any():
            raise ValueError("before must increase strictly, and after must never decrease")


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How good distributions are on held-out rows.

    Attributes:
        log_loss: Mean natural log loss.
        brier: Mean squared distance from the right label, summed over labels (Brier, Monthly Weather Review 78(1),
            1950), of two labels half of it.
        accuracy: Share whose most probable label is right.
    """

    log_loss: float
    brier: float
    accuracy: float


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which confidence on answers are right often enough, as the rows say that were held out.

    Attributes:
        accuracy: How often is enough.
        observed: Share of the rows above the threshold that are right.
        confidence: The least probability of the most probable label; None if no confidence is enough.
        coverage: Share of rows from there on.
        at_least: Lower end of the 95 % interval of their accuracy (Clopper and Pearson, Biometrika 26(4), 1934), where
            rows that have something in common count once. It does not know that the threshold was chosen by these rows.
    """

    accuracy: float
    observed: float
    confidence: float | None
    coverage: float
    at_least: float


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A calibration of one kind of distribution.

    Attributes:
        identity: What it belongs to.
        begins: Tokens with which a query must begin: those that all queries of the rows have in common.
        labels: Names of the labels, for people.
        scaling: The first part; None if it gains nothing.
        curves: The second part: of two labels that of the second, else one for each label; none if it gains nothing.
        rows: Rows it was fitted on.
        groups: How many of them have nothing in common with each other.
        raw: Figures without it.
        calibrated: Figures with it.
        act: From where on one may act.
        review: From where on a person may be shown the answer; below, none is given.
        notes: What is to be known of it, each a sentence.
    """

    identity: Identity
    begins: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    scaling: Scaling | None = None
    curves: tuple[Curve, ...] = ()
    rows: _Count
    groups: _Count
    raw: Figures
    calibrated: Figures
    act: Threshold
    review: Threshold
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = self.identity.num_labels
        if not 2 <= count <= MAX_LABELS:
            raise ValueError(f"identity must have from 2 to {MAX_LABELS} labels")
        if self.scaling is not None and len(self.scaling.bias) not in (0, count):
            raise ValueError("scaling must have a bias for each label, or none")
        if len(self.curves) not in (0, num_curves(count)):
            raise ValueError("curves must be one for each label, one for two labels, or none")

    @cached_property
    def digest(self) -> str:
        """A digest of what it belongs to and does."""
        return digest_of([self.identity, self.begins, self.scaling, self.curves])

    def apply(self, logprobs: Float64[np.ndarray, "rows labels"]) -> Float64[np.ndarray, "rows labels"]:
        """Return calibrated probabilities; each row depends on itself alone.

        Args:
            logprobs: Natural logarithms of the probabilities of labels among themselves, in the order of the identity.
        """
        return curved(scaled(logprobs, self.scaling), self.curves)


def num_curves(labels: int) -> int:
    """Return how many curves so many labels have: with two, one says all."""
    return 1 if labels == 2 else labels


def scaled(logprobs: Float64[np.ndarray, "rows labels"], scaling: Scaling | None) -> Float64[np.ndarray, "rows labels"]:
    """Return probabilities with the first part."""
    if scaling is None:
        return softmax(logprobs, axis=1)
    return softmax(logprobs / scaling.temperature + np.array(scaling.bias or 0.0), axis=1)


def curved(
    probabilities: Float64[np.ndarray, "rows labels"], curves: Sequence[Curve]
) -> Float64[np.ndarray, "rows labels"]:
    """Return probabilities with the second part: each label's by its curve, divided by their sum.

    Source: Zadrozny and Elkan, "Transforming classifier scores into accurate multiclass probability estimates", 2002.
    """
    if not curves:
        return probabilities
    columns = probabilities[:, -len(curves) :]
    after = np.stack([np.interp(columns[:, i], each.before, each.after) for i, each in enumerate(curves)], axis=1)
    mixed = (1 - TIE_SHARE) * after + TIE_SHARE * columns
    if len(curves) == 1:
        return np.concatenate([1 - mixed, mixed], axis=1)
    return mixed / mixed.sum(axis=1, keepdims=True)


def log_softmax(values: Float64[np.ndarray, "rows values"]) -> Float64[np.ndarray, "rows values"]:
    """Return the logarithm of the softmax. SciPy's fails where PyTorch is not to be imported, as in the server."""
    below_best = values - values.max(axis=1, keepdims=True)
    return below_best - np.log(np.exp(below_best).sum(axis=1, keepdims=True))
