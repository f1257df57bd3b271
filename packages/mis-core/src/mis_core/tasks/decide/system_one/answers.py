"""Answers as System One has them, with its names and its confidence.

Confidence is as TypeSafe's service documents it (jevcompat's specification 0.1, section 4.5): of a choice how far the
most probable option is above an equal share; of a score 1 less the mean distance from the most probable level, in units
of that of equal levels from their middle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from mis_core.tasks.decide.judged import Judged


@dataclass(frozen=True, slots=True)
class SystemOneNoul:
    """How likely it is.

    Attributes:
        noul: Probability of yes, among yes and no.
        x_label_mass: Probability of yes and no together over the whole vocabulary; None of a trained head.
        type: Kind of the question.
    """

    noul: float
    x_label_mass: float | None
    type: Literal["noul"] = "noul"

    @property
    def certainty(self) -> float:
        """What is compared with `x_abstain_below`."""
        return 2 * abs(self.noul - 0.5)


@dataclass(frozen=True, slots=True)
class SystemOneChoice:
    """Which choice is the most probable.

    Attributes:
        choice: Name of the most probable choice, the one that is read first among equals.
        confidence: From 0, all are equal, to 1.
        probabilities: Of all choices by their names, in the order they were given.
        x_label_mass: Probability of all codes together over the whole vocabulary; None of a trained head.
        type: Kind of the question.
    """

    choice: str
    confidence: float
    probabilities: dict[str, float]
    x_label_mass: float | None
    type: Literal["choice"] = "choice"

    @property
    def certainty(self) -> float:
        """What is compared with `x_abstain_below`."""
        return self.confidence


@dataclass(frozen=True, slots=True)
class SystemOneScore:
    """Where on the levels the state is.

    Attributes:
        score: Expected level, counted from 0.
        confidence: From 0 to 1.
        legend: The levels as they were given, by their numbers.
        probabilities: Of all levels by their numbers.
        x_label_mass: Probability of all codes together over the whole vocabulary; None of a trained head.
        type: Kind of the question.
    """

    score: float
    confidence: float
    legend: dict[str, Any]
    probabilities: dict[str, float]
    x_label_mass: float | None
    type: Literal["score"] = "score"

    @property
    def certainty(self) -> float:
        """What is compared with `x_abstain_below`."""
        return self.confidence


SystemOneAnswer = SystemOneNoul | SystemOneChoice | SystemOneScore


@dataclass(frozen=True, slots=True)
class FailedQuestion:
    """Why a question has no answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SystemOneUsage:
    """Token counts; the state counts once."""

    input_tokens: int
    x_cached_tokens: int
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemOneResult:
    """Answers by the ids of their questions.

    Attributes:
        answers: Of all questions, but for those in `x_errors`.
        usage: Token counts.
        x_abstained: Ids of answers below the confidence that was asked for; absent where none was.
        x_joint: True where the model reads all questions in one prompt, so that answers depend on the others; otherwise
            absent.
        x_errors: Questions that cannot be answered, with `x_on_error` `item`; absent where there are none.
        x_calibration: Of each answer the digest of its calibration, None if it has none; absent where none is loaded.
    """

    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
    x_abstained: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    x_joint: bool | msgspec.UnsetType = msgspec.UNSET
    x_errors: dict[str, FailedQuestion] | msgspec.UnsetType = msgspec.UNSET
    x_calibration: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET


def answer(judged: Judged, legend: Sequence[Any]) -> SystemOneAnswer:
    """Answer a question; of a score `legend` has the levels as they were given."""
    probabilities, mass = judged.probabilities, judged.label_mass
    if judged.question.kind == "predicate":
        return SystemOneNoul(float(probabilities[0]), mass)
    if judged.question.kind == "choice":
        names = [str(option.value) for option in judged.question.options]
        each = dict(zip(names, probabilities.tolist(), strict=True))
        return SystemOneChoice(names[judged.best], _above_equal_share(probabilities), each, mass)
    levels = [str(level) for level in range(len(legend))]
    weights = probabilities / probabilities.sum()  # rounded to float32, they miss 1 by a little
    return SystemOneScore(
        score=float(weights @ np.arange(len(levels))),
        confidence=_nearness(weights),
        legend=dict(zip(levels, legend, strict=True)),
        probabilities=dict(zip(levels, probabilities.tolist(), strict=True)),
        x_label_mass=mass,
    )


def _above_equal_share(probabilities: np.ndarray) -> float:
    equal = 1 / len(probabilities)
    return min(1.0, max(0.0, (float(probabilities.max()) - equal) / (1 - equal)))


def _nearness(probabilities: np.ndarray) -> float:
    levels = np.arange(len(probabilities))
    best = np.flatnonzero(probabilities == probabilities.max())  # of several the one that the others are nearest to
    distance = float((np.abs(levels - best[:, None]) @ probabilities).min())
    return max(0.0, 1 - distance / float(np.abs(levels - levels.mean()).mean()))
