"""Labelled rows as requests, and what the model says of each: what a calibration is fitted to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int32

from mis_core.calibration import Identity
from mis_core.calibration.fit import Examples
from mis_core.errors import ConfigError, RequestError
from mis_core.labelled import ClassifyRow, DecideRow, RerankRow, Row, ScoreRow
from mis_core.tasks.classify.task import CLASSIFY, classify_logprobs
from mis_core.tasks.decide.asked_question import AskedQuestion
from mis_core.tasks.decide.judged import question_logprobs
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_core.tasks.path.service import Service
from mis_core.tasks.rerank.task import RERANK, rerank_logprobs
from mis_core.tasks.score.task import SCORE, score_logprobs

_AT_ONCE = 128
"""Most rows of a request."""


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How labelled rows are asked.

    Attributes:
        item_first: Whether items of scores come before the query.
        instruction: How documents are judged; None for the recipe's own.
        relevant_from: From which relevance on a document is relevant.
    """

    item_first: bool = False
    instruction: str | None = None
    relevant_from: float = 1.0


@dataclass(slots=True)
class Collected:
    """Distributions of one kind.

    Attributes:
        identity: What a calibration of them belongs to.
        names: Names of the labels.
        title: What they are, for people.
        logprobs: Of each row, `[labels]`.
        right: Place of the right label of each row.
        rows: Which row of the data each is of.
        queries: Different queries of the rows, as tokens; of scores alone.
    """

    identity: Identity
    names: tuple[str, ...]
    title: str
    logprobs: list[Float64[np.ndarray, " labels"]] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    queries: dict[bytes, Int32[np.ndarray, " tokens"]] = field(default_factory=dict)

    def examples(self, weights: Float64[np.ndarray, " rows"], groups: np.ndarray) -> Examples:
        """Return what is fitted to, with weights and groups of all rows of the data."""
        rows = np.array(self.rows)
        order = np.argsort(rows, kind="stable")  # whatever order answers came in
        rows = rows[order]
        return Examples(np.stack(self.logprobs)[order], np.array(self.right)[order], weights[rows], groups[rows])


class Collector:
    """Asks a model about labelled rows, and collects distributions by what they belong to."""

    def __init__(self, model: Service[Any], options: RowOptions) -> None:
        self._model = model
        self._options = options
        self.found: dict[str, Collected] = {}

    async def ask(self, part: Sequence[tuple[int, Row]]) -> None:
        """Ask about rows that `requests` has put together.

        Raises:
            ConfigError: a row cannot be asked; says which and why.
        """
        first = part[0][1]
        try:
            match first:
                case ScoreRow():
                    await self._score(first, [(number, row) for number, row in part if isinstance(row, ScoreRow)])
                case RerankRow():
                    await self._rerank(part[0][0], first)
                case DecideRow():
                    await self._decide(part[0][0], first)
                case ClassifyRow():
                    await self._classify([(number, row) for number, row in part if isinstance(row, ClassifyRow)])
        except RequestError as error:
            where = first.where if len(part) == 1 else f"{first.where} or one that is asked with it"
            raise ConfigError(f"{where}: {error.message}", "data") from None

    async def _score(self, first: ScoreRow, rows: list[tuple[int, ScoreRow]]) -> None:
        fields = {
            "query": first.query,
            "items": [row.item for _, row in rows],
            "labels": list(first.labels),
            "apply_softmax": True,
            "item_first": self._options.item_first,
        }
        answered = await self._model.answer(SCORE, fields)
        parsed, (output,) = answered.parsed, answered.outputs
        collected = self._of(parsed.identity, first.labels, "score")
        assert parsed.begins is not None, "as it has an identity"
        collected.queries.setdefault(parsed.begins.tobytes(), parsed.begins)
        for (number, row), logprobs in zip(rows, score_logprobs(parsed, output), strict=True):
            _add(collected, number, logprobs, row.label)

    async def _rerank(self, number: int, row: RerankRow) -> None:
        fields = {"query": row.query, "documents": list(row.documents), "instruction": self._options.instruction}
        answered = await self._model.answer(RERANK, fields)
        (request,), (output,) = answered.parsed.requests, answered.outputs
        collected = self._of(answered.parsed.identity, ("irrelevant", "relevant"), "rerank")
        for logprobs, relevance in zip(rerank_logprobs(request, output), row.relevance, strict=True):
            _add(collected, number, logprobs, int(relevance >= self._options.relevant_from))

    async def _decide(self, number: int, row: DecideRow) -> None:
        answered = await self._model.answer(SYSTEM_ONE, {"state": row.state, "questions": dict(row.questions)})
        asked = answered.parsed.asked
        if asked.is_joint:
            raise ConfigError("This model reads all questions in one prompt; its answers cannot be calibrated.", "data")
        ids = list(answered.parsed.needs)
        for index, logprobs in question_logprobs(asked, answered.outputs).items():
            each, name = asked.questions[index], ids[index]
            assert isinstance(each, AskedQuestion), "as it has been asked"
            if name not in row.answers:
                continue
            right, names = row.right_option(name), _names(each.question)
            if each.question.kind == "predicate":
                right = names.index("true" if right else "false")
            read = tuple(names[option] for option in each.orders[0])
            _add(self._of(each.identity, read, f"decide, {name}"), number, logprobs, each.orders[0].index(right))

    async def _classify(self, rows: list[tuple[int, ClassifyRow]]) -> None:
        answered = await self._model.answer(CLASSIFY, {"input": [row.input for _, row in rows]})
        if answered.parsed.identity is None:
            raise ConfigError("This model's head gives no distribution over labels; it cannot be calibrated.", "data")
        labels = answered.parsed.labels
        if len(labels) == 1:
            labels = (f"not {labels[0]}", *labels)
        collected = self._of(answered.parsed.identity, labels, "classify")
        values = answered.outputs[0].logits.astype(np.float64)
        for (number, row), logprobs in zip(rows, classify_logprobs(values), strict=True):
            if row.label not in labels:
                raise ConfigError(f"{row.where}: label must be one of {', '.join(labels)}, not {row.label!r}.", "data")
            _add(collected, number, logprobs, labels.index(row.label))

    def _of(self, identity: Identity | None, names: tuple[str, ...], title: str) -> Collected:
        assert identity is not None, "as requests are identified, and ask for no raw probabilities"
        return self.found.setdefault(identity.digest, Collected(identity, names, title))


def requests(rows: Sequence[Row]) -> Iterator[list[tuple[int, Row]]]:
    """Yield rows that are asked together, with their numbers: those of one query, and whole inputs."""
    together: dict[object, list[tuple[int, Row]]] = {}
    for number, row in enumerate(rows):
        match row:
            case ScoreRow():
                key: object = row.query, row.labels
            case ClassifyRow():
                key = "inputs"
            case _:
                key = number
        part = together.setdefault(key, [])
        part.append((number, row))
        if len(part) == _AT_ONCE:
            yield together.pop(key)
    yield from together.values()


def _add(collected: Collected, row: int, logprobs: Float64[np.ndarray, " labels"], right: int) -> None:
    collected.rows.append(row)
    collected.logprobs.append(logprobs)
    collected.right.append(right)


def _names(question: Question) -> list[str]:
    if question.kind == "predicate":
        return ["true", "false"]
    return [option.shown for option in question.options]
