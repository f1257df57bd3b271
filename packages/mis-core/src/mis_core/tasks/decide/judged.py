"""What the model's outputs say of questions that were asked."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from mis_core.requests import EngineOutput
from mis_core.tasks.decide.asked import Asked
from mis_core.tasks.decide.asked_question import AskedQuestion
from mis_core.tasks.decide.pointer import pointed
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.probabilities import check_finite, label_logprobs, label_softmax


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What the model says of a question.

    Attributes:
        question: The question.
        probabilities: `[labels]` among all of them, in the order they were given, averaged over the orders in which
            they were read; of a predicate those of yes and no.
        best: Place of the most probable option, of equals the one that is read first.
        label_mass: Probability of all its labels together over the whole vocabulary; None of a trained head, which
            says nothing of that.
    """

    question: Question
    probabilities: Float64[np.ndarray, " labels"]
    best: int
    label_mass: float | None


def judge(asked: Asked, outputs: tuple[EngineOutput, ...]) -> list[Judged | ItemError]:
    """Return what the engine's outputs say of each question, or why it was not asked.

    The probability of a label is the softmax over the labels of its item, as that of a score with `apply_softmax`.
    """
    found: dict[int, Judged | ItemError] = {
        index: each for index, each in enumerate(asked.questions) if isinstance(each, ItemError)
    }
    for request, output, own in zip(asked.requests, outputs, asked.members, strict=True):
        questions = {index: each for index in own if isinstance(each := asked.questions[index], AskedQuestion)}
        temperatures = [each.temperature for each in questions.values() for _ in each.orders]
        values, is_label = pointed(request, output) if asked.points else (output.logits, request.label_ids >= 0)
        check_finite(values[is_label])
        probabilities = label_softmax(values, is_label, np.array(temperatures)[:, None]).astype(np.float64)
        masses = None if not request.needs_log_sum_exp else _label_masses(output, is_label)
        begin = 0
        for index, each in questions.items():
            rows = slice(begin, begin + len(each.orders))
            begin = rows.stop
            mass = None if masses is None else float(masses[rows].mean())
            found[index] = _judged(each, probabilities[rows, : len(each.labels[0])], mass)
    return [found[index] for index in range(len(asked.questions))]


def _judged(
    asked: AskedQuestion, probabilities: Float64[np.ndarray, "rows labels"], label_mass: float | None
) -> Judged:
    by_option = np.zeros(len(asked.orders[0]))
    for order, row in zip(asked.orders, probabilities, strict=True):
        by_option[order] += row
    by_option /= len(asked.orders)
    best = max(asked.orders[0], key=lambda index: by_option[index])
    return Judged(asked.question, by_option, best, label_mass)


def _label_masses(output: EngineOutput, is_label: Bool[np.ndarray, "items labels"]) -> Float64[np.ndarray, " items"]:
    """Return the probability of all labels of each item over the whole vocabulary."""
    over_all = np.exp(label_logprobs(output).astype(np.float64)) * is_label
    return np.minimum(over_all.sum(axis=1), 1.0)  # rounded, they may come out above
