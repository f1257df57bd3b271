"""Equivalence and parity: two computations of the same scores, compared as label softmaxes and log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mis_bench.targets.base import CallFailed, Scores
from mis_bench.validation.ask import Score
from mis_bench.validation.gates import FIGURES, Figure
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


async def answers(score: Score, cases: Sequence[Workload], *, with_softmax: bool = False) -> Answers:
    """Score all cases; a failure is kept, not raised.

    Args:
        score: What computes.
        cases: What is asked, without `apply_softmax`.
        with_softmax: Ask again with `apply_softmax`: engines compute it in another way.
    """
    try:
        probabilities = [await score(case) for case in cases]
        softmaxes = [await score(replace(case, apply_softmax=True)) for case in cases] if with_softmax else []
    except CallFailed as error:
        return Answers(failure=str(error))
    if min(each.min() for each in probabilities) <= 0:
        return Answers(failure="a probability is 0, and has no logarithm")
    return Answers(probabilities, softmaxes)


def compare(name: str, expected: Answers, actual: Answers, names: Sequence[str]) -> list[Figure]:
    """Measure how far apart two computations are; the detail is the worst item, or why there is no figure.

    Args:
        name: Of the gates, with `{}` for the figure's own name.
        expected: One computation.
        actual: The other one.
        names: Of the cases.
    """
    if failure := expected.failure or actual.failure:
        return [Figure(name=name.format(figure), measured=None, detail=failure) for figure in FIGURES]
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
    measured = (
        float(softmaxes[worst].max()),
        float(np.concatenate(softmaxes).mean()),
        max(float(each.max()) for each in logprobs),
    )
    detail = f"{names[worst % len(names)]}, item {item}; {order_agreement(expected, actual):.1%} of pairs in order"
    return [
        Figure(name=name.format(figure), measured=value, detail=detail)
        for figure, value in zip(FIGURES, measured, strict=True)
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
