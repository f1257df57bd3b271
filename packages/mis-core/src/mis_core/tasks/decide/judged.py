"""What the model's outputs say of questions that were asked."""

from dataclasses import dataclass

import msgspec
import numpy as np
from jaxtyping import Bool, Float32, Float64

from mis_core.calibration import Calibrations
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.asked import Asked
from mis_core.tasks.decide.asked_question import AskedQuestion
from mis_core.tasks.decide.pointer import pointed
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.probabilities import applied, check_finite, label_log_softmax, label_logprobs, label_softmax


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
        calibration: Digest of the calibration of the probabilities, None if they have none; absent where none is
            loaded.
    """

    question: Question
    probabilities: Float64[np.ndarray, " labels"]
    best: int
    label_mass: float | None
    calibration: str | msgspec.UnsetType | None = msgspec.UNSET


def judge(
    asked: Asked, outputs: tuple[EngineOutput, ...], calibrations: Calibrations | None = None
) -> list[Judged | ItemError]:
    """Return what the engine's outputs say of each question, or why it was not asked.

    The probability of a label is the softmax over the labels of its item, as that of a score with `apply_softmax`.
    """
    found: dict[int, Judged | ItemError] = {
        index: each for index, each in enumerate(asked.questions) if isinstance(each, ItemError)
    }
    for request, output, own in zip(asked.requests, outputs, asked.members, strict=True):
        values, is_label = _values(asked, request, output)
        masses = None if not request.needs_log_sum_exp else _label_masses(output, is_label)
        questions = {index: each for index in own if isinstance(each := asked.questions[index], AskedQuestion)}
        temperatures = np.array([each.temperature for each in questions.values() for _ in each.orders])[:, None]
        probabilities = label_softmax(values, is_label, temperatures).astype(np.float64)
        begin = 0
        for index, each in questions.items():
            rows, count = slice(begin, begin + len(each.orders)), len(each.labels[0])
            begin = rows.stop
            mass = None if masses is None else float(masses[rows].mean())
            entry = None if calibrations is None else calibrations.find(each.identity)
            if entry is None:
                by_option = _by_option(each, probabilities[rows, :count])
            else:
                logprobs = _read_logprobs(each, values[rows, :count])
                by_option = _by_option(each, entry.apply(logprobs[None]), each.orders[:1])
            best = max(each.orders[0], key=lambda option: by_option[option])
            found[index] = Judged(each.question, by_option, best, mass, applied(calibrations, entry))
    return [found[index] for index in range(len(asked.questions))]


def question_logprobs(asked: Asked, outputs: tuple[EngineOutput, ...]) -> dict[int, Float64[np.ndarray, " labels"]]:
    """Return what a calibration is fitted to, by the number of each question that may have one.

    These are the logarithms of the probabilities of its options in the order in which they are first read, averaged
    over all orders.
    """
    found: dict[int, Float64[np.ndarray, " labels"]] = {}
    for request, output, own in zip(asked.requests, outputs, asked.members, strict=True):
        values, _ = _values(asked, request, output)
        begin = 0
        for index in own:
            each = asked.questions[index]
            assert isinstance(each, AskedQuestion), "as they are members"
            rows = slice(begin, begin + len(each.orders))
            begin = rows.stop
            if each.identity is not None:
                found[index] = _read_logprobs(each, values[rows, : len(each.labels[0])])
    return found


def _values(
    asked: Asked, request: ScoreRequest, output: EngineOutput
) -> tuple[Float32[np.ndarray, "items labels"], Bool[np.ndarray, "items labels"]]:
    """Return the logits of each item's labels, and which of them are any."""
    values, is_label = pointed(request, output) if asked.points else (output.logits, request.label_ids >= 0)
    check_finite(values[is_label])
    return values, is_label


def _by_option(
    asked: AskedQuestion, probabilities: Float64[np.ndarray, "rows labels"], orders: list[list[int]] | None = None
) -> Float64[np.ndarray, " labels"]:
    """Return the mean probability of each option, in the order they were given."""
    orders = asked.orders if orders is None else orders
    by_option = np.zeros(len(orders[0]))
    for order, row in zip(orders, probabilities, strict=True):
        by_option[order] += row
    return by_option / len(orders)


def _read_logprobs(asked: AskedQuestion, values: Float32[np.ndarray, "rows labels"]) -> Float64[np.ndarray, " labels"]:
    logprobs = label_log_softmax(values, np.ones((1, values.shape[1]), bool), asked.temperature)
    if len(asked.orders) == 1:
        return logprobs[0]
    by_option = _by_option(asked, np.exp(logprobs))[asked.orders[0]]
    return np.log(np.maximum(by_option, np.finfo(np.float64).tiny))


def _label_masses(output: EngineOutput, is_label: Bool[np.ndarray, "items labels"]) -> Float64[np.ndarray, " items"]:
    """Return the probability of all labels of each item over the whole vocabulary."""
    over_all = np.exp(label_logprobs(output).astype(np.float64)) * is_label
    return np.minimum(over_all.sum(axis=1), 1.0)  # rounded, they may come out above
