"""Equivalence and parity: two computations of the same scores, compared as label softmaxes and log-probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mis_bench.artifacts.validation import Difference, Gate, judged
from mis_bench.targets.base import CallFailed, Scores
from mis_bench.validation.thresholds import Limits
from mis_bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Answers:
    """One computation's scores of all cases, or why there are none.

    Attributes:
        probabilities: Of each label over the full vocabulary, for each case.
        softmaxes: Label softmaxes as the computation itself returned them; empty if they follow from the
            probabilities.
        failure: One sentence, if it failed.
    """

    probabilities: Sequence[Scores] = ()
    softmaxes: Sequence[Scores] = field(default=())
    failure: str = ""

    @property
    def label_softmaxes(self) -> list[Scores]:
        """Probabilities of the labels among themselves, by case."""
        return [each / each.sum(axis=1, keepdims=True) for each in self.probabilities]


def answers(score: Callable[[Workload], Scores], cases: Sequence[Workload], *, with_softmax: bool = False) -> Answers:
    """Score all cases; a failure is kept, not raised.

    Args:
        score: What computes.
        cases: What is asked, without `apply_softmax`.
        with_softmax: Ask again with `apply_softmax`: engines compute it in another way.
    """
    try:
        probabilities = [score(case) for case in cases]
        softmaxes = [score(replace(case, apply_softmax=True)) for case in cases] if with_softmax else []
    except CallFailed as error:
        return Answers(failure=str(error))
    if min(each.min() for each in probabilities) <= 0:
        return Answers(failure="a probability is 0, and has no logarithm")
    return Answers(probabilities, softmaxes)


def compare(expected: Answers, actual: Answers, names: Sequence[str]) -> tuple[Difference, str]:
    """Return how far apart two computations are, and the worst item or why there is no figure."""
    if failure := expected.failure or actual.failure:
        return Difference(), failure
    softmaxes = [
        np.abs(mine - wanted)
        for found in (actual.label_softmaxes, actual.softmaxes)
        for mine, wanted in zip(found, expected.label_softmaxes, strict=False)
    ]
    logprobs = [
        np.abs(np.log(mine) - np.log(wanted))
        for mine, wanted in zip(actual.probabilities, expected.probabilities, strict=True)
    ]
    worst = int(np.argmax([each.max() for each in softmaxes]))
    item = int(np.argmax(softmaxes[worst].max(axis=1)))
    difference = Difference(
        max_abs_diff=float(softmaxes[worst].max()),
        mean_abs_diff=float(np.concatenate(softmaxes).mean()),
        max_logprob_diff=max(float(each.max()) for each in logprobs),
    )
    return difference, f"{names[worst % len(names)]}, item {item}"


def difference_gates(name: str, compared: tuple[Difference, str], limits: Limits) -> list[Gate]:
    """Return the three gates of a comparison.

    Args:
        name: Where the figures stand in the artifact, with `{}` for the figure's own name.
        compared: What `compare` returned.
        limits: Thresholds.
    """
    difference, detail = compared
    return [
        judged(name.format(figure), getattr(difference, figure), "at most", getattr(limits, figure), detail)
        for figure in ("max_abs_diff", "mean_abs_diff", "max_logprob_diff")
    ]


def swapped(found: Answers) -> Answers:
    """Plant a fault: every item gets the scores of the one before it."""
    return replace(found, probabilities=[np.roll(each, 1, axis=0) for each in found.probabilities], softmaxes=())


def order_agreement(expected: Answers, actual: Answers) -> float:
    """Return the share of pairs of items, within a case, that both computations put in the same order."""
    same = total = 0
    for mine, wanted in zip(actual.label_softmaxes, expected.label_softmaxes, strict=True):
        first, second = np.triu_indices(len(wanted), k=1)
        orders = [np.sign(each[first, 0] - each[second, 0]) for each in (mine, wanted)]
        same, total = same + int((orders[0] == orders[1]).sum()), total + len(first)
    return same / total
