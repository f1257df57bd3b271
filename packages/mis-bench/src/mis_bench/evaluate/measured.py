"""What was measured of a target: its figures with intervals, over all rows and by slice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from mis_bench.evaluate.answers import Answers, RowAnswer, RowRanking
from mis_bench.evaluate.asking import Found
from mis_bench.evaluate.figures import Figure, figures_of
from mis_bench.evaluate.ranking import ranking_figures
from mis_bench.evaluate.resampling import Interval, ResampledFigure, interval, replicas
from mis_core.labelled import DecideRow, Labelled, RerankRow, groups_of

_RELEVANT = ("irrelevant", "relevant")
_QUESTION = "question="


@dataclass(frozen=True, slots=True)
class Rows:
    """What figures need to know of the rows of labelled data.

    Attributes:
        data: Itself.
        weights: Of each row.
        clusters: Number of what each row is resampled with: of rankings the rows of its query, otherwise all that have
            anything in common with it.
    """

    data: Labelled
    weights: Float64[np.ndarray, " rows"]
    clusters: Int64[np.ndarray, " rows"]

    @classmethod
    def of(cls, data: Labelled) -> "Rows":
        """Look which rows have something in common."""
        weights = np.array([row.weight for row in data.rows])
        queries = [row.query for row in data.rows if isinstance(row, RerankRow)]
        if queries:
            _, clusters = np.unique(np.array(queries, object), return_inverse=True)
            return cls(data, weights, clusters.astype(np.int64))
        return cls(data, weights, groups_of(data.rows))

    @property
    def slices(self) -> dict[str, Bool[np.ndarray, " rows"]]:
        """The slices that rows name, and which rows are in each."""
        named = np.array([row.slice or "" for row in self.data.rows], object)
        return {name: named == name for name in dict.fromkeys(named.tolist()) if name}


class FigureSet(NamedTuple):
    """Figures of the same answers, which are resampled together."""

    figures: Mapping[str, Figure]
    weight: Float64[np.ndarray, " answers"]
    cluster: Int64[np.ndarray, " answers"]


@dataclass(frozen=True, slots=True)
class Told:
    """What a target told of some rows.

    Attributes:
        answers: Distributions over classes; of rankings whether documents are relevant, where relevance is 0 or 1 and
            all scores are from 0 to 1. None if there are none.
        rankings: Scores of documents.
        rows: Of the data.
    """

    answers: Answers | None
    rankings: Sequence[RowRanking]
    rows: Rows

    @classmethod
    def of(cls, found: Found, rows: Rows) -> "Told":
        """Make arrays of what was told."""
        answers = found.answers or _documents(found.rankings)
        return cls(Answers.of(answers, rows.weights, rows.clusters) if answers else None, found.rankings, rows)

    def of_rows(self, chosen: Bool[np.ndarray, " rows"]) -> "Told":
        """Return what was told of some rows."""
        answers = self.answers and self.answers.where(chosen[self.answers.row])
        rankings = [each for each in self.rankings if chosen[each.row]]
        return Told(answers if answers is not None and len(answers) else None, rankings, self.rows)

    def of_questions(self, numbers: Sequence[int]) -> "Told":
        """Return the answers to some questions."""
        assert self.answers is not None, "it has questions"
        return Told(self.answers.where(np.isin(self.answers.question, numbers)), (), self.rows)

    @property
    def has_row(self) -> Bool[np.ndarray, " rows"]:
        """Which rows something was told of."""
        told = np.zeros(len(self.rows.weights), bool)
        if self.answers is not None:
            told[self.answers.row] = True
        told[[each.row for each in self.rankings]] = True
        return told

    def parts(self, names: Sequence[str]) -> list[FigureSet]:
        """Return the figures; of `names` those with a number of their own."""
        parts = []
        if self.rankings:
            index = np.array([each.row for each in self.rankings])
            weight = self.rows.weights[index]
            parts.append(FigureSet(ranking_figures(self.rankings, weight, names), weight, self.rows.clusters[index]))
        if self.answers is not None:
            parts.append(FigureSet(figures_of(self.answers, names), self.answers.weight, self.answers.cluster))
        return parts


class MeasuredRows(NamedTuple):
    """Figures of some rows.

    Attributes:
        rows: Number of rows that something was told of.
        values: The figures.
        replicas: Of resamples; not of all figures.
    """

    rows: int
    values: Mapping[str, float]
    replicas: Mapping[str, ResampledFigure]

    @property
    def figures(self) -> dict[str, Interval]:
        """Figures with their intervals."""
        return {name: interval(value, self.replicas.get(name)) for name, value in self.values.items()}


def slice_names(rows: Rows) -> list[str]:
    """Return the names of all slices: those that rows name, and of several questions `question=ID` for each."""
    asked = dict.fromkeys(name for row in rows.data.rows if isinstance(row, DecideRow) for name in row.answers)
    return [*rows.slices, *(f"{_QUESTION}{name}" for name in asked if len(asked) > 1)]


def measure(told: Told, names: Sequence[str]) -> MeasuredRows:
    """Compute figures and their resamples; of `names` those with a number of their own."""
    values: dict[str, float] = {}
    made: dict[str, ResampledFigure] = {}
    for part in told.parts(names):
        values |= {name: figure.value for name, figure in part.figures.items()}
        resampled = {name: figure.resampled for name, figure in part.figures.items()}
        made |= replicas(resampled, part.weight, part.cluster)
    return MeasuredRows(int(told.has_row.sum()), values, made)


def by_slice(told: Told, names: Sequence[str]) -> dict[str, MeasuredRows]:
    """Measure the slices of `slice_names`, but for those that nothing was told of."""
    parts = {name: told.of_rows(chosen) for name, chosen in told.rows.slices.items()}
    if told.answers is not None and told.rows.data.kind == "decide":
        by_name: dict[str, list[int]] = {}
        for number, question in enumerate(told.answers.questions):
            by_name.setdefault(question[0], []).append(number)
        if len(slice_names(told.rows)) > len(told.rows.slices):
            parts |= {f"{_QUESTION}{name}": told.of_questions(numbers) for name, numbers in by_name.items()}
    return {name: measure(part, names) for name, part in parts.items() if part.has_row.any()}


def _documents(rankings: Sequence[RowRanking]) -> list[RowAnswer]:
    """Return as answers whether documents are relevant, where relevance is 0 or 1 and scores may be probabilities."""
    if not rankings:
        return []
    scores = np.concatenate([each.scores for each in rankings])
    relevance = np.concatenate([each.relevance for each in rankings])
    if not (np.isin(relevance, (0.0, 1.0)).all() and (scores >= 0).all() and (scores <= 1).all()):
        return []
    return [
        RowAnswer(each.row, ("", _RELEVANT), _RELEVANT, (1 - score, score), int(relevant), False, None)
        for each in rankings
        for score, relevant in zip(each.scores.tolist(), each.relevance.tolist(), strict=True)
    ]
