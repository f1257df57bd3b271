"""Two targets on the same rows: differences, the correlation of their scores, what flips and what changes most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from mis_bench.evaluate import sums
from mis_bench.evaluate.answers import Answers, RowRanking
from mis_bench.evaluate.figures import log_losses
from mis_bench.evaluate.measured import Told, measure
from mis_bench.evaluate.ranking import ndcg
from mis_bench.evaluate.resampling import Interval, interval
from mis_core.labelled import ClassifyRow, RerankRow, Row, ScoreRow

WORST = 20
"""Examples that are kept of those whose loss changed most."""

_CUTOFF = 10  # of the nDCG that is a ranking's loss


class Example(NamedTuple):
    """What two targets made of the same.

    Attributes:
        row: Name of the row.
        question: Id of the question, of decisions.
        text: What it is about.
        truth: The right class; of rankings the places of relevant documents.
        decisions: Of both targets: the most probable class, the first among equals; of rankings the best document.
        probabilities: That each gave to the right class; of rankings the nDCG.
        change: Of the loss, from the first to the second: of the log loss, of rankings of 1 - nDCG@10.
    """

    row: str
    question: str | None
    text: str
    truth: str
    decisions: tuple[str, str]
    probabilities: tuple[float, float]
    change: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A target beside the first.

    Attributes:
        targets: Names of both.
        rows: Rows that both answered.
        figures: Differences, the second less the first.
        rank_correlation: Spearman's, of their scores; None where all scores of one are equal.
        flips: Rows whose decision differs, in the order of the data.
        worst: Those whose loss changed most, the largest change first.
    """

    targets: tuple[str, str]
    rows: int
    figures: dict[str, Interval]
    rank_correlation: float | None
    flips: list[Example]
    worst: list[Example]


def pair(targets: tuple[str, str], first: Told, second: Told, names: Sequence[str]) -> Pair:
    """Compare two targets on the rows that both answered; of figures `names` those with a number of their own."""
    both = first.has_row & second.has_row
    told = first.of_rows(both), second.of_rows(both)
    measured = [measure(each, names) for each in told]
    figures = {
        name: interval(
            measured[1].values[name] - value,
            measured[1].replicas[name].minus(measured[0].replicas[name]) if name in measured[0].replicas else None,
        )
        for name, value in measured[0].values.items()
        if name in measured[1].values
    }
    examples = list(_examples(*told))
    changed = sorted((each for each in examples if each.change), key=lambda each: -abs(each.change))
    return Pair(
        targets,
        int(both.sum()),
        figures,
        _rank_correlation(*told),
        [each for each in examples if each.decisions[0] != each.decisions[1]],
        changed[:WORST],
    )


def _rank_correlation(first: Told, second: Told) -> float | None:
    """Return Spearman's correlation: of documents' scores, of a second class's probabilities, or of all classes'."""
    scores = [_scores(each) for each in (first, second)]
    if not len(scores[0]) or len(scores[0]) != len(scores[1]):
        return None
    size = len(scores[0])
    found = float(sums.spearman(scores[0], scores[1], np.arange(size))(np.ones((1, size)))[0])
    return found if np.isfinite(found) else None


def _scores(told: Told) -> Float64[np.ndarray, " scores"]:
    if told.rankings:
        return np.concatenate([each.scores for each in told.rankings])
    if told.answers is None:
        return np.zeros(0)
    answers = told.answers
    return answers.probabilities[:, 1] if answers.is_binary else answers.probabilities[answers.classes >= 0]


def _examples(first: Told, second: Told) -> Iterator[Example]:
    """Yield all that both answered."""
    rows = first.rows.data.rows
    if first.rankings:
        yield from _of_rankings(rows, first.rankings, second.rankings)
    elif first.answers is not None and second.answers is not None:
        yield from _of_answers(rows, first.answers, second.answers)


def _of_answers(rows: Sequence[Row], first: Answers, second: Answers) -> Iterator[Example]:
    losses = log_losses(first), log_losses(second)
    decided = [each.probabilities.argmax(axis=1) for each in (first, second)]
    right = first.true_probability, second.true_probability
    for index, row in enumerate(first.row.tolist()):
        named = [first.names[first.classes[index, slot]] for slot in (first.truth[index], decided[0][index])]
        yield Example(
            row=rows[row].id,
            question=first.questions[first.question[index]][0] or None,
            text=_text_of(rows[row]),
            truth=named[0],
            decisions=(named[1], second.names[second.classes[index, decided[1][index]]]),
            probabilities=(float(right[0][index]), float(right[1][index])),
            change=float(losses[1][index] - losses[0][index]),
        )


def _of_rankings(rows: Sequence[Row], first: Sequence[RowRanking], second: Sequence[RowRanking]) -> Iterator[Example]:
    gains = [np.nan_to_num(ndcg(each, _CUTOFF), nan=1.0) for each in (first, second)]
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        row = rows[one.row]
        assert isinstance(row, RerankRow)
        yield Example(
            row=row.id,
            question=None,
            text=_text_of(row),
            truth=", ".join(map(str, np.flatnonzero(one.relevance))) or "none",
            decisions=(str(int(one.scores.argmax())), str(int(other.scores.argmax()))),
            probabilities=(float(gains[0][index]), float(gains[1][index])),
            change=float(gains[0][index] - gains[1][index]),
        )


def _text_of(row: Row) -> str:
    """Return what tells a row from others."""
    match row:
        case ScoreRow():
            return row.item
        case RerankRow():
            return row.query
        case ClassifyRow():
            return row.input
    return row.state if isinstance(row.state, str) else str(row.state)
