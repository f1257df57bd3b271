"""What is fitted for one kind of distribution: its parts in the order they are applied, and their figures."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from jaxtyping import Float64
from msgspec import Meta

from mis_core.calibration.identity import Identity, digest_of

TIE_SHARE = 2.0**-12
"""Share of the old probability in one that a curve gives, so that equal results keep the order they had."""

_MOST_POINTS = 4096
MAX_LABELS = 1024
"""Most labels of a distribution."""

_Count = Annotated[int, Meta(ge=0)]
_Bias = Annotated[float, Meta(ge=-1000, le=1000)]
_Probability = Annotated[float, Meta(ge=0, le=1)]
_Points = Annotated[tuple[_Probability, ...], Meta(min_length=2, max_length=_MOST_POINTS)]


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first part, on label logits: temperature scaling (arXiv 1706.04599, section 4.2), and a bias for each label.

    For two labels, the two together are Platt scaling (Platt, Advances in Large Margin Classifiers, 1999).

    Attributes:
        temperature: Divides the logits.
        bias: Then added to each label's logit; empty: nothing.
    """

    temperature: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    bias: Annotated[tuple[_Bias, ...], Meta(max_length=MAX_LABELS)] = ()


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second part, on the probability of a label: an isotonic regression, linear between the centres of its steps.

    Attributes:
        before: Probabilities, strictly increasing.
        after: What they become, never decreasing; constant beyond the ends.
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
            1950); for two labels half of that.
        accuracy: Share of rows whose most probable label is right.
    """

    log_loss: float
    brier: float
    accuracy: float


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The confidence from which answers are right often enough, measured on held-out rows.

    Attributes:
        accuracy: The accuracy that is enough.
        observed: Share of the rows above the threshold that are right.
        confidence: The least probability of the most probable label; None if no confidence is enough.
        coverage: Share of rows with at least this confidence.
        at_least: Lower end of the 95 % interval of their accuracy (Clopper and Pearson, Biometrika 26(4), 1934), where
            rows that have something in common count once. It ignores that these rows also chose the threshold.
    """

    accuracy: float
    observed: float
    confidence: float | None
    coverage: float
    at_least: float


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A calibration of one kind of distribution.

    Attributes:
        identity: What it was fitted for.
        begins: Tokens with which a query must begin: the common beginning of all queries of the rows.
        labels: Names of the labels, for people.
        scaling: The first part; None if it gains nothing.
        curves: The second part: one for each label, for two labels only the second's; none if it gains nothing.
        rows: Rows it was fitted on.
        groups: Number of groups of rows that have something in common.
        raw: Figures without it.
        calibrated: Figures with it.
        act: The threshold from which one may act on an answer.
        review: The threshold from which a person may be shown an answer; below it, none is given.
        notes: What users should know about it, a sentence each.
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
        """Digest of what it was fitted for and of its parts."""
        return digest_of([self.identity, self.begins, self.scaling, self.curves])

    def apply(self, logprobs: Float64[np.ndarray, "rows labels"]) -> Float64[np.ndarray, "rows labels"]:
        """Return calibrated probabilities; each row depends on itself alone.

        Args:
            logprobs: Natural logarithms of the probabilities of labels among themselves, in the order of the identity.
        """
        return curved(scaled(logprobs, self.scaling), self.curves)


def num_curves(labels: int) -> int:
    """Return the number of curves for a number of labels; two labels need only one."""
    return 1 if labels == 2 else labels


def scaled(logprobs: Float64[np.ndarray, "rows labels"], scaling: Scaling | None) -> Float64[np.ndarray, "rows labels"]:
    """Return probabilities with the first part."""
    if scaling is None:
        return softmax(logprobs)
    return softmax(logprobs / scaling.temperature + np.array(scaling.bias or 0.0))


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


def softmax(values: Float64[np.ndarray, "rows values"]) -> Float64[np.ndarray, "rows values"]:
    """Return the softmax, with SciPy's bits; importing SciPy takes a sixth of a second in each process of a server."""
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def log_softmax(values: Float64[np.ndarray, "rows values"]) -> Float64[np.ndarray, "rows values"]:
    """Return the logarithm of the softmax. SciPy's fails where PyTorch must not be imported, as in the server."""
    below_best = values - values.max(axis=1, keepdims=True)
    return below_best - np.log(np.exp(below_best).sum(axis=1, keepdims=True))
