"""Answers of decisions: from the probabilities of labels to what a question is answered with."""

import math
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from mis_core.tasks.decide.judged import Judged
from mis_core.tasks.decide.questions import Option, Question


@dataclass(frozen=True, slots=True)
class PredicateAnswer:
    """How likely it is that a statement is true.

    Attributes:
        name: The question's name, or None.
        probability: Of yes, among yes and no.
        label_mass: Probability of yes and no together over the whole vocabulary; None for a trained head.
        type: Kind of the question.
    """

    name: str | None
    probability: float
    label_mass: float | None
    type: Literal["predicate"] = "predicate"


@dataclass(frozen=True, slots=True)
class ChoiceProbability:
    """A choice and its probability among all choices."""

    value: str | bool
    probability: float


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """Which choice is the most probable.

    Attributes:
        name: The question's name, or None.
        choice: Value of the most probable choice; among equals, the one that is read first.
        confidence: Its probability.
        probabilities: Probabilities of all choices, in the order they were given.
        label_mass: Probability of all codes together over the whole vocabulary; None for a trained head.
        type: Kind of the question.
    """

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: tuple[ChoiceProbability, ...]
    label_mass: float | None
    type: Literal["choice"] = "choice"


@dataclass(frozen=True, slots=True)
class LevelProbability:
    """A level, its index counted from 0, and its probability among all levels."""

    label: str
    value: int
    probability: float


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """Where on the levels the input is.

    Attributes:
        name: The question's name, or None.
        score: Expected index of the level, counted from 0.
        confidence: 1 if one level has all the probability; 0 if the levels spread as equal ones do, or wider.
        probabilities: Probabilities of all levels, in their order.
        label_mass: Probability of all codes together over the whole vocabulary; None for a trained head.
        type: Kind of the question.
    """

    name: str | None
    score: float
    confidence: float
    probabilities: tuple[LevelProbability, ...]
    label_mass: float | None
    type: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class QuestionError:
    """Why a question has no answer."""

    code: str
    message: str
    param: str


@dataclass(frozen=True, slots=True)
class RefusalAnswer:
    """A question that cannot be answered while the others are; only with `on_error` `item`.

    Attributes:
        name: The question's name, or None.
        error: Why it cannot be answered.
        type: `refusal`.
    """

    name: str | None
    error: QuestionError
    type: Literal["refusal"] = "refusal"


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer


@dataclass(frozen=True, slots=True)
class InputTokensDetails:
    """Where input tokens came from; what is written to the cache is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutputTokensDetails:
    """Details of output tokens; there is no reasoning."""

    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DecisionUsage:
    """Token counts; what all questions share counts once."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    total_tokens: int
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


@dataclass(frozen=True, slots=True)
class Decision:
    """Answers in the order of the questions.

    Attributes:
        answers: The answers.
        usage: Token counts.
        calibration: Digest of each answer's calibration, None if it has none; absent where none is loaded.
    """

    answers: tuple[Answer, ...]
    usage: DecisionUsage
    calibration: tuple[str | None, ...] | msgspec.UnsetType = msgspec.UNSET


def answer(judged: Judged) -> Answer:
    """Answer a question."""
    question, probabilities, mass = judged.question, judged.probabilities, judged.label_mass
    if question.kind == "predicate":
        return PredicateAnswer(question.name, float(probabilities[0]), mass)
    if question.kind == "score":
        return _score(question, probabilities, mass)
    values = [_value(option) for option in question.options]
    each = tuple(map(ChoiceProbability, values, probabilities.tolist()))
    best = judged.best
    return ChoiceAnswer(question.name, values[best], float(probabilities[best]), each, mass)


def _value(option: Option) -> str | bool:
    assert isinstance(option.value, (str, bool)), "as OpenAI's are"
    return option.value


def _score(question: Question, probabilities: np.ndarray, label_mass: float | None) -> ScoreAnswer:
    numbers = np.arange(len(probabilities))
    weights = probabilities / probabilities.sum()  # rounded to float32, they miss 1 by a little
    expected = float(weights @ numbers)
    spread = math.sqrt(float(weights @ (numbers - expected) ** 2))
    confidence = max(0.0, 1 - spread / float(np.std(numbers)))
    labels = [str(option.value) for option in question.options]
    each = tuple(map(LevelProbability, labels, numbers.tolist(), probabilities.tolist()))
    return ScoreAnswer(question.name, expected, confidence, each, label_mass)
