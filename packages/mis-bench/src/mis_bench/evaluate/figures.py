"""The figures of answers, by their names."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from mis_bench.evaluate import reliability, sums
from mis_bench.evaluate.answers import Answers
from mis_bench.evaluate.resampling import Resampled

ALWAYS = ("coverage@0.9", "coverage@0.95", "ndcg@10")
"""Figures with a number of their own that are computed without being asked for."""

NAMES = (
    "accuracy", "macro_f1", "auc", "log_loss", "brier", "ece", "ece_width", "spearman", "label_mass", "coverage@A",
    "ndcg@K", "mrr",
)  # fmt: skip
"""How figures are spelled; A is a share and K a whole number."""

MOST_QUESTIONS = 50
"""With more questions or sets of labels, what is a mean over their classes is left out."""

_WITH_NUMBER = re.compile(r"coverage@(0?\.\d+|1(\.0*)?)|ndcg@[1-9]\d{0,5}")


def is_figure(name: str) -> bool:
    """Whether there is a figure of that name."""
    return (name in NAMES and "@" not in name) or _WITH_NUMBER.fullmatch(name) is not None


class Figure(NamedTuple):
    """A figure of some answers.

    Attributes:
        value: Of the answers as they are.
        resampled: The same under other weights.
    """

    value: float
    resampled: Resampled


def figures_of(answers: Answers, names: Sequence[str] = ALWAYS) -> dict[str, Figure]:
    """Return the figures of answers, by name; those that are not defined are left out.

    Args:
        answers: At least one.
        names: Those with a number of their own that are wanted.

    Raises:
        ModuleNotFoundError: scikit-learn is missing.
    """
    made = _of_all(answers) | _of_classes(answers) | _of_coverage(answers, names)
    return {name: figure for name, figure in made.items() if np.isfinite(figure.value)}


def log_losses(answers: Answers) -> Float64[np.ndarray, " answers"]:
    """Return of each the negated natural logarithm of the right class's probability; one below 2^-52 counts as that."""
    return -np.log(np.clip(answers.true_probability, np.finfo(np.float64).eps, None))


def brier_scores(answers: Answers) -> Float64[np.ndarray, " answers"]:
    """Return of each the squared distances of all probabilities from 1 or 0, summed; of two classes half of that."""
    right = np.zeros_like(answers.probabilities)
    right[np.arange(len(answers)), answers.truth] = 1.0
    summed = ((answers.probabilities - right) ** 2).sum(axis=1)
    return np.where(answers.sizes == 2, summed / 2, summed)


def _of_all(answers: Answers) -> dict[str, Figure]:
    """Return figures that look at each answer by itself, or at probabilities alone."""
    from sklearn import metrics

    weight, truth = answers.weight, answers.truth
    slots = np.arange(answers.probabilities.shape[1])
    found = reliability.predicted(answers)
    # Padding has a probability of 0 and is never right, so that it changes neither loss.
    log_loss = metrics.log_loss(truth, answers.probabilities, sample_weight=weight, labels=slots)
    expanded = _Expanded.of(answers)
    calibrated = {"ece": reliability.ece(found, weight), "ece_width": reliability.ece_width(found)}
    mass = sums.mean_of(answers.mass)
    return {
        "accuracy": Figure(expanded.score(metrics.accuracy_score), sums.mean_of(answers.correct)),
        "log_loss": Figure(float(log_loss), sums.mean_of(log_losses(answers))),
        "brier": Figure(_brier(answers), sums.mean_of(brier_scores(answers))),
        **{name: Figure(_once(each, weight), each) for name, each in calibrated.items()},
        "label_mass": Figure(_once(mass, weight), mass),
    }


def _brier(answers: Answers) -> float:
    """Return the mean Brier score; of answers of different sizes that of each size by itself, weighted."""
    from sklearn import metrics

    summed = 0.0
    for is_two in (True, False):
        chosen = (answers.sizes == 2) == is_two
        if not chosen.any():
            continue
        weight, wide = answers.weight[chosen], answers.probabilities[chosen]
        wide = wide[:, :2] if is_two else wide
        options: dict[str, Any] = {"labels": np.arange(wide.shape[1]), "scale_by_half": is_two}
        each = metrics.brier_score_loss(answers.truth[chosen], wide, sample_weight=weight, **options)
        summed += each * weight.sum()
    return float(summed / answers.weight.sum())


def _of_classes(answers: Answers) -> dict[str, Figure]:
    """Return figures that are means over classes or questions, unless there are too many."""
    from sklearn import metrics

    if len(np.unique(answers.question)) > MOST_QUESTIONS:
        return {}
    truth = answers.classes[np.arange(len(answers)), answers.truth]
    found = {
        "macro_f1": Figure(_Expanded.of(answers).score(_f1), sums.macro_f1(answers.shares, answers.classes, truth))
    }
    areas = [
        (
            sums.auc(score, is_positive, chosen),
            metrics.roc_auc_score(is_positive[chosen], score[chosen], sample_weight=answers.weight[chosen]),
        )
        for score, is_positive, chosen in _one_against_rest(answers, truth)
    ]
    if areas:
        parts, values = zip(*areas, strict=True)
        found["auc"] = Figure(float(np.mean(values)), sums.mean_over(parts))
    right_level = answers.truth.astype(np.float64)
    ordered = [
        chosen
        for question in np.unique(answers.question[answers.is_ordered])
        if len(np.unique(answers.truth[chosen := np.flatnonzero(answers.question == question)])) > 1
    ]
    if ordered:
        together = sums.mean_over([sums.spearman(answers.level, right_level, chosen) for chosen in ordered])
        found["spearman"] = Figure(_once(together, answers.weight), together)
    return found


def _of_coverage(answers: Answers, names: Sequence[str]) -> dict[str, Figure]:
    made: dict[str, Figure] = {}
    for name in names:
        kind, _, number = name.partition("@")
        if kind == "coverage":
            each = sums.coverage(answers.confidence, answers.correct, float(number))
            made[name] = Figure(_once(each, answers.weight), each)
    return made


def _one_against_rest(
    answers: Answers, truth: Int64[np.ndarray, " answers"]
) -> "Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]":
    """Yield of each class its probabilities, whether it is right, and the answers that have it.

    Classes that are right for all of them, or for none, are left out.
    """
    for number in np.unique(answers.classes[answers.classes >= 0]):
        is_own = answers.classes == number
        chosen = np.flatnonzero(is_own.any(axis=1))
        is_right = truth == number
        if 0 < is_right[chosen].sum() < len(chosen):
            yield (answers.probabilities * is_own).sum(axis=1), is_right, chosen


class _Expanded(NamedTuple):
    """Right classes and decisions as scikit-learn takes them.

    Who decides for two classes is there twice, with half the weight.
    """

    truth: Int64[np.ndarray, " decisions"]
    decided: Int64[np.ndarray, " decisions"]
    weight: Float64[np.ndarray, " decisions"]

    @classmethod
    def of(cls, answers: Answers) -> "_Expanded":
        shares = answers.shares
        which, column = shares.nonzero()
        truth = answers.classes[which, answers.truth[which]]
        return cls(truth, answers.classes[which, column], answers.weight[which] * shares[which, column])

    def score(self, metric: Callable[..., float]) -> float:
        return float(metric(self.truth, self.decided, sample_weight=self.weight))


def _f1(truth: np.ndarray, decided: np.ndarray, sample_weight: np.ndarray) -> float:
    from sklearn import metrics

    options: dict[str, Any] = {"average": "macro", "zero_division": 0.0}
    return float(metrics.f1_score(truth, decided, sample_weight=sample_weight, **options))


def _once(resampled: Resampled, weight: Float64[np.ndarray, " answers"]) -> float:
    return float(resampled(weight[None])[0])
