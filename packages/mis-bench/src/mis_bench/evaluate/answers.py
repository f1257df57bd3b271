"""What targets answered, as arrays: distributions over classes beside the right one, and scores of documents."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float64, Int64

_BITS, _BITS_OF_SUMS = 40, 32
_NEARLY = 1e-9

Question = tuple[str, tuple[str, ...]]
"""What answers to one question have in common: an id, empty where rows have one question; its sorted classes."""


class RowAnswer(NamedTuple):
    """An answer to one question of a row.

    Attributes:
        row: Index of the row.
        question: What other answers to the same have, too.
        names: Of the classes, in the order of the probabilities.
        probabilities: Of the classes; made to sum to 1.
        truth: Index of the right class.
        is_ordered: Whether the classes are levels in their order.
        mass: Of all classes before they were made to sum to 1, or None where the target does not tell it.
    """

    row: int
    question: Question
    names: Sequence[str]
    probabilities: Sequence[float]
    truth: int
    is_ordered: bool
    mass: float | None

    def in_order(self, names: Sequence[str]) -> "RowAnswer":
        """Return it with its classes in another order."""
        if list(self.names) == list(names):
            return self
        index = {name: index for index, name in enumerate(self.names)}
        moved = [self.probabilities[index[name]] for name in names]
        return self._replace(names=names, probabilities=moved, truth=list(names).index(self.names[self.truth]))


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Answers as arrays. What an answer has fewer classes than the largest is padded with probabilities of 0.

    Attributes:
        row: Index of the row of each.
        question: Number of the question of each.
        probabilities: Of its own classes.
        sizes: Number of its own classes.
        classes: Numbers of its own classes; a class is a name in a question. -1 is padding.
        truth: Index of the right one among its own classes.
        is_ordered: Whether its classes are levels.
        mass: Of all its classes; NaN where it is not known.
        weight: Of the row.
        cluster: Number of what is resampled together with it.
        names: Of the classes, by their numbers.
        questions: Of the questions, by their numbers.
    """

    row: Int64[np.ndarray, " answers"]
    question: Int64[np.ndarray, " answers"]
    probabilities: Float64[np.ndarray, "answers classes"]
    sizes: Int64[np.ndarray, " answers"]
    classes: Int64[np.ndarray, "answers classes"]
    truth: Int64[np.ndarray, " answers"]
    is_ordered: Bool[np.ndarray, " answers"]
    mass: Float64[np.ndarray, " answers"]
    weight: Float64[np.ndarray, " answers"]
    cluster: Int64[np.ndarray, " answers"]
    names: tuple[str, ...]
    questions: tuple[Question, ...]

    @classmethod
    def of(
        cls,
        found: Iterable[RowAnswer],
        weights: Float64[np.ndarray, " rows"],
        clusters: Int64[np.ndarray, " rows"],
    ) -> Self:
        """Make arrays of answers; weights and clusters are those of all rows of the data.

        Answers to a question have its classes in one order.
        """
        found = list(found)
        widest = max((len(each.names) for each in found), default=2)
        probabilities = np.zeros((len(found), widest))
        classes = np.full((len(found), widest), -1, np.int64)
        questions = {question: number for number, question in enumerate(dict.fromkeys(each.question for each in found))}
        known: dict[tuple[int, str], int] = {}
        for index, each in enumerate(found):
            probabilities[index, : len(each.names)] = each.probabilities
            number = questions[each.question]
            classes[index, : len(each.names)] = [known.setdefault((number, name), len(known)) for name in each.names]
        rows = np.array([each.row for each in found], np.int64)
        return cls(
            row=rows,
            question=np.array([questions[each.question] for each in found], np.int64),
            probabilities=_normalized(probabilities),
            sizes=np.array([len(each.names) for each in found], np.int64),
            classes=classes,
            truth=np.array([each.truth for each in found], np.int64),
            is_ordered=np.array([each.is_ordered for each in found], bool),
            mass=np.array([np.nan if each.mass is None else each.mass for each in found], np.float64),
            weight=weights[rows],
            cluster=clusters[rows],
            names=tuple(name for _, name in known),
            questions=tuple(questions),
        )

    def __len__(self) -> int:
        """Number of answers."""
        return len(self.row)

    def where(self, chosen: Bool[np.ndarray, " answers"] | Int64[np.ndarray, " chosen"]) -> Self:
        """Return some of the answers, by a mask or by their indices."""
        own = (
            "row",
            "question",
            "probabilities",
            "sizes",
            "classes",
            "truth",
            "is_ordered",
            "mass",
            "weight",
            "cluster",
        )
        return replace(self, **{name: getattr(self, name)[chosen] for name in own})

    @property
    def true_probability(self) -> Float64[np.ndarray, " answers"]:
        """Of the right class of each."""
        return self.probabilities[np.arange(len(self)), self.truth]

    @property
    def shares(self) -> Float64[np.ndarray, "answers classes"]:
        """What of a decision each class gets: all of it the most probable one, equal parts where several are."""
        is_top = self.probabilities == self.probabilities.max(axis=1, keepdims=True)
        return is_top / is_top.sum(axis=1, keepdims=True)

    @property
    def correct(self) -> Float64[np.ndarray, " answers"]:
        """Whether each decides rightly, 1 or 0; between where several classes are the most probable."""
        return self.shares[np.arange(len(self)), self.truth]

    @property
    def confidence(self) -> Float64[np.ndarray, " answers"]:
        """Of each the largest probability."""
        return self.probabilities.max(axis=1)

    @property
    def is_binary(self) -> bool:
        """Whether all have two classes."""
        return bool((self.sizes == 2).all())

    @property
    def level(self) -> Float64[np.ndarray, " answers"]:
        """The expected index of the class of each: of two classes the probability of the second."""
        exact = self.probabilities @ np.arange(self.probabilities.shape[1], dtype=np.float64)
        return _rounded(exact, _BITS_OF_SUMS)


class RowRanking(NamedTuple):
    """Scores of a row's documents.

    Attributes:
        row: Index of the row.
        scores: Of the documents, higher is better.
        relevance: Of the documents, 0 or more.
    """

    row: int
    scores: Float64[np.ndarray, " documents"]
    relevance: Float64[np.ndarray, " documents"]


def _normalized(probabilities: Float64[np.ndarray, "answers classes"]) -> Float64[np.ndarray, "answers classes"]:
    """Make rows sum to 1, but for rounding; what does already is left as it is, so that equal ones stay equal."""
    total = probabilities.sum(axis=1, keepdims=True)
    return _rounded(probabilities / np.where(np.abs(total - 1) > _NEARLY, total, 1.0))


def _rounded(values: Float64[np.ndarray, "*rows"], bits: int = _BITS) -> Float64[np.ndarray, "*rows"]:
    """Round, so that what is equal but for rounding is equal; scores in single precision have 24 bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent)
