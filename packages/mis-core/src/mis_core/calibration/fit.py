"""Fitting a calibration to labelled rows; each part is kept only if it improves held-out rows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import isotonic_regression, minimize
from scipy.special import betaincinv

from mis_core.calibration.entry import (
    MAX_LABELS,
    Curve,
    Entry,
    Figures,
    Scaling,
    Threshold,
    curved,
    log_softmax,
    num_curves,
    scaled,
)
from mis_core.calibration.identity import Identity

LEAST_ROWS = 10
"""Fewest rows that anything is fitted to."""

FIRM_ROWS = 50
"""A fit to fewer rows is provisional."""

CURVE_ROWS = 200
"""Fewest rows that a curve is fitted to."""

THRESHOLD_GROUPS = 20
"""Fewest groups of rows that a threshold is chosen on."""

_FOLDS = 5
_SEED = 53
_BIAS_PENALTY = 1.0  # a bias is taken to be about 1 at most; of many rows that means nothing
_LOG_TEMPERATURE_PENALTY = 0.05  # a temperature to be within a factor of 90; keeps it finite where rows are separable
_MOST_LOG_TEMPERATURE = float(np.log(100))
_LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Distributions over the same labels, and which label is right.

    Attributes:
        logprobs: Natural logarithms of the probabilities of labels among themselves, `[rows, labels]`.
        right: Index of the right label, `[rows]`.
        weights: How much each row counts, `[rows]`.
        groups: A number for each row, equal for rows that have something in common, `[rows]`.
    """

    logprobs: Float64[np.ndarray, "rows labels"]
    right: Int64[np.ndarray, " rows"]
    weights: Float64[np.ndarray, " rows"]
    groups: Int64[np.ndarray, " rows"]

    def __len__(self) -> int:
        return len(self.right)

    def part(self, chosen: np.ndarray) -> "Examples":
        """Return some rows."""
        return Examples(*(getattr(self, name)[chosen] for name in ("logprobs", "right", "weights", "groups")))


class CannotFit(Exception):
    """Nothing can be fitted; says why in a sentence."""


def fit_entry(
    identity: Identity,
    examples: Examples,
    *,
    begins: tuple[int, ...] = (),
    labels: tuple[str, ...] = (),
    act: float = 0.95,
    review: float = 0.8,
) -> Entry:
    """Fit a calibration.

    Args:
        identity: What it belongs to.
        examples: The rows.
        begins: Tokens with which queries begin.
        labels: Names of the labels.
        act: Accuracy required of answers that one may act on.
        review: Accuracy required of answers that a person may be shown.

    Raises:
        CannotFit: there are too few rows, labels or groups, or a probability is not finite; says which.
    """
    _check(examples, labels)
    folds = _folds(examples)
    raw = found = scaled(examples.logprobs, None)
    kept = _Parts(has_scaling=False, has_bias=False, has_curves=False)
    trials = [_Parts(has_scaling=True, has_bias=with_bias, has_curves=False) for with_bias in (False, True)]
    for trial in trials:
        tried = _held_out(examples, folds, trial)
        if _gains(examples, found, tried):
            kept, found = trial, tried
    if len(examples) >= CURVE_ROWS:
        trial = kept._replace(has_curves=True)
        tried = _held_out(examples, folds, trial)
        if _gains(examples, found, tried):
            kept, found = trial, tried
    scaling, curves = _fitted(examples, kept)
    return Entry(
        identity=identity,
        begins=begins,
        labels=labels,
        scaling=scaling,
        curves=curves,
        rows=len(examples),
        groups=len(np.unique(examples.groups)),
        raw=_figures(examples, raw),
        calibrated=_figures(examples, found),
        act=_threshold(examples, found, act),
        review=_threshold(examples, found, review),
        notes=tuple(_notes(examples, labels, is_kept=kept.has_scaling or kept.has_curves)),
    )


def _check(examples: Examples, labels: tuple[str, ...]) -> None:
    if examples.logprobs.shape[1] > MAX_LABELS:
        raise CannotFit(f"has {examples.logprobs.shape[1]} labels; at most {MAX_LABELS} are calibrated.")
    if len(examples) < LEAST_ROWS:
        raise CannotFit(
            f"has {len(examples)} rows; at least {LEAST_ROWS} are needed, and {FIRM_ROWS} for a reliable fit."
        )
    if not np.isfinite(examples.logprobs).all():
        row = int((~np.isfinite(examples.logprobs)).any(axis=1).argmax())
        raise CannotFit(f"has probabilities in row {row + 1} that are not finite.")
    if len(np.unique(examples.right)) < 2:
        name = labels[examples.right[0]] if labels else examples.right[0]
        raise CannotFit(f"has rows of one label only, {name!r}; rows of the others are needed, too.")
    if len(np.unique(examples.groups)) < 2:
        raise CannotFit(
            "has rows that all have something in common, so none can be held out. Rows must differ in query and text."
        )


def _notes(examples: Examples, labels: tuple[str, ...], *, is_kept: bool) -> list[str]:
    notes = []
    if not is_kept:
        notes.append("Probabilities stay as they are: rows that were held out gain nothing by a change.")
    if len(examples) < FIRM_ROWS:
        notes.append(f"Provisional: {len(examples)} rows; {FIRM_ROWS} are needed to rely on it.")
    counts = np.bincount(examples.right, minlength=examples.logprobs.shape[1])
    empty = [labels[index] if labels else str(index) for index in np.flatnonzero(counts == 0)]
    if empty:
        notes.append(f"No row has the label {', '.join(map(repr, empty[:5]))}{' and others' if empty[5:] else ''}.")
    repeated = len(examples) - len(np.unique(examples.groups))
    if repeated:
        notes.append(f"{repeated} rows have something in common with earlier ones, and are held out together.")
    return notes


def _folds(examples: Examples) -> Int64[np.ndarray, " rows"]:
    """Return the fold of each row: groups are dealt out, the largest first, to the fold with the fewest rows."""
    numbers, group, sizes = np.unique(examples.groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(_SEED).permutation(len(numbers))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold, filled = np.zeros(len(numbers), np.int64), np.zeros(min(_FOLDS, len(numbers)), np.int64)
    for each in order:
        fold[each] = filled.argmin()
        filled[fold[each]] += sizes[each]
    return fold[group]


class _Parts(NamedTuple):
    """Which parts are fitted."""

    has_scaling: bool
    has_bias: bool
    has_curves: bool


def _fitted(examples: Examples, parts: _Parts) -> tuple[Scaling | None, tuple[Curve, ...]]:
    scaling = _scaling(examples, parts.has_bias) if parts.has_scaling else None
    return scaling, _curves(examples, scaled(examples.logprobs, scaling)) if parts.has_curves else ()


def _held_out(
    examples: Examples, folds: Int64[np.ndarray, " rows"], parts: _Parts
) -> Float64[np.ndarray, "rows labels"]:
    """Return probabilities of each row by what is fitted to the rows of the other folds."""
    probabilities = np.empty_like(examples.logprobs)
    for fold in range(folds.max() + 1):
        scaling, curves = _fitted(examples.part(folds != fold), parts)
        probabilities[folds == fold] = curved(scaled(examples.logprobs[folds == fold], scaling), curves)
    return probabilities


def _scaling(examples: Examples, with_bias: bool) -> Scaling:
    """Minimise the log loss of temperature and bias, with a penalty on what is far from none."""
    logits, right = examples.logprobs, examples.right
    rows, labels = logits.shape
    weights = examples.weights * (rows / examples.weights.sum())
    at_right = np.arange(rows), right

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        inverse, bias = np.exp(-values[0]), values[1:]
        logprobs = log_softmax(logits * inverse + (bias if with_bias else 0.0))
        slope = np.exp(logprobs)
        slope[at_right] -= 1
        slope *= weights[:, None]  # by each logit
        penalty = _LOG_TEMPERATURE_PENALTY * values[0] ** 2 + _BIAS_PENALTY * (bias @ bias)
        total = -(weights @ logprobs[at_right]) + penalty / 2
        by_temperature = -inverse * (slope * logits).sum() + _LOG_TEMPERATURE_PENALTY * values[0]
        by_bias = slope.sum(axis=0) + _BIAS_PENALTY * bias if with_bias else np.zeros(0)
        return total, np.append(by_temperature, by_bias)

    begin = np.zeros(1 + labels * with_bias)
    most = [(-_MOST_LOG_TEMPERATURE, _MOST_LOG_TEMPERATURE)] + [(None, None)] * (len(begin) - 1)
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=most, options={"gtol": 1e-9, "ftol": 1e-14})
    return Scaling(temperature=float(np.exp(found.x[0])), bias=tuple(found.x[1:].tolist()))


def _curves(examples: Examples, probabilities: Float64[np.ndarray, "rows labels"]) -> tuple[Curve, ...]:
    labels = probabilities.shape[1]
    return tuple(
        _curve(probabilities[:, label], examples.right == label, examples.weights)
        for label in range(labels - num_curves(labels), labels)
    )


def _curve(
    probability: Float64[np.ndarray, " rows"], is_right: np.ndarray, weights: Float64[np.ndarray, " rows"]
) -> Curve:
    """Fit an isotonic regression, and join the centres of its steps (arXiv 1701.05964).

    Steps keep away from 0 and 1, which no number of rows can tell, as far as Laplace's rule of succession says.
    """
    before, index = np.unique(probability, return_inverse=True)
    sums = np.bincount(index, weights)
    means = np.bincount(index, weights * is_right) / sums
    found = isotonic_regression(means, weights=sums)
    starts = found.blocks[:-1]
    mass = np.add.reduceat(sums, starts)
    centres = np.add.reduceat(sums * before, starts) / mass
    least = 1 / (len(probability) + 2)
    after = np.clip(found.x[starts], least, 1 - least)
    if len(centres) == 1:  # a flat curve
        centres, after = np.array([0.0, 1.0]), np.repeat(after, 2)
    return Curve(before=tuple(centres.tolist()), after=tuple(after.tolist()))


def _losses(examples: Examples, probabilities: Float64[np.ndarray, "rows labels"]) -> Float64[np.ndarray, " rows"]:
    return -np.log(np.maximum(probabilities[np.arange(len(examples)), examples.right], _LEAST_PROBABILITY))


def _gains(examples: Examples, before: np.ndarray, after: np.ndarray) -> bool:
    """Whether the log loss falls by more than its standard error, over groups.

    Source: the one-standard-error rule, Breiman et al., Classification and Regression Trees, 1984, section 3.4.3.
    """
    weights = examples.weights / examples.weights.sum()
    gain = _losses(examples, before) - _losses(examples, after)
    mean = float(weights @ gain)
    _, group = np.unique(examples.groups, return_inverse=True)
    sums = np.bincount(group, weights * (gain - mean))
    count = len(sums)
    return mean > float(np.sqrt(count / (count - 1) * (sums @ sums)))


def _figures(examples: Examples, probabilities: Float64[np.ndarray, "rows labels"]) -> Figures:
    weights, labels = examples.weights / examples.weights.sum(), probabilities.shape[1]
    right = probabilities[np.arange(len(examples)), examples.right]
    distance = (probabilities**2).sum(axis=1) - right**2 + (1 - right) ** 2
    return Figures(
        log_loss=float(weights @ _losses(examples, probabilities)),
        brier=float(weights @ distance) / (2 if labels == 2 else 1),
        accuracy=float(weights @ (probabilities.argmax(axis=1) == examples.right)),
    )


def _threshold(examples: Examples, probabilities: Float64[np.ndarray, "rows labels"], accuracy: float) -> Threshold:
    """Return the least confidence from which on held-out rows are right often enough."""
    confidence, is_right = probabilities.max(axis=1), probabilities.argmax(axis=1) == examples.right
    order = np.argsort(-confidence, kind="stable")
    confidence, is_right, weights = confidence[order], is_right[order], examples.weights[order]
    share = np.cumsum(weights * is_right) / np.cumsum(weights)
    is_last = np.append(confidence[1:] < confidence[:-1], True)  # equal ones are answered together
    first = np.unique(examples.groups[order], return_index=True)[1]
    groups = np.cumsum(np.isin(np.arange(len(order)), first))
    enough = np.flatnonzero((share >= accuracy) & is_last & (groups >= THRESHOLD_GROUPS))
    if not len(enough):
        return Threshold(accuracy=accuracy, observed=0.0, confidence=None, coverage=0.0, at_least=0.0)
    last = int(enough[-1])
    hits = share[last] * groups[last]  # rows with something in common count once
    low = betaincinv(hits, groups[last] - hits + 1, 0.025) if hits else 0.0  # SciPy's binomtest imports PyTorch
    return Threshold(
        accuracy=accuracy,
        observed=float(share[last]),
        confidence=float(confidence[last]),
        coverage=float(weights[: last + 1].sum() / weights.sum()),
        at_least=float(low),
    )
