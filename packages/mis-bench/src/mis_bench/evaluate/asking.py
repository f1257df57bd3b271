"""Asking a target about all rows of labelled data: which rows share a request, and what failed."""

import asyncio
import itertools
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from mis_bench.evaluate.answers import Question, RowAnswer, RowRanking
from mis_bench.evaluate.dialects import Classified, Dialect, Distribution, Send
from mis_bench.evaluate.questions import Classes, classes_of, truth_of
from mis_bench.evaluate.targets import OpenTarget
from mis_bench.targets.asking import Json
from mis_bench.targets.target import CallFailed
from mis_core.labelled import ClassifyRow, DecideRow, Labelled, RerankRow, ScoreRow

MOST_ITEMS = 256
"""Rows that share a query and labels and are asked in one request, at most."""

MOST_INPUTS = 32
"""Inputs that are classified in one request, at most."""

_KEPT = 4096  # replies, for those who ask the same

_SUM = 0.02  # how far from 1 probabilities may sum up to


@dataclass(slots=True)
class Found:
    """What a target said.

    Attributes:
        answers: In the order of the rows.
        rankings: Likewise.
        failures: Why there is nothing of a row, by its index.
    """

    answers: list[RowAnswer] = field(default_factory=list)
    rankings: list[RowRanking] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)


def check_answers(data: Labelled) -> None:
    """Look whether all right answers are answers to their questions; raises `ConfigError`."""
    for row in data.rows:
        if isinstance(row, DecideRow):
            for name in row.answers:
                truth_of(row, name)


async def ask(
    opened: OpenTarget, dialects: Sequence[Dialect], data: Labelled, callers: int, on_row: Callable[[int], None]
) -> list[Found]:
    """Ask about every row, in each dialect.

    A request that a target refuses is sent again for each row alone, so that only those fail that must. All dialects
    ask about a row at once, before later rows are asked about: a target that keeps what they share computes it once.

    Args:
        opened: The target.
        dialects: How it is asked.
        data: The rows.
        callers: Requests under way at once.
        on_row: Called with the number of rows that a request was about.
    """
    send = _bounded(opened.send, callers)
    if len(dialects) > 1:
        send = _once(send)
    askers = [_Asker(send, opened.head_labels, dialect, data) for dialect in dialects]
    permits = asyncio.Semaphore(callers)

    async def one(rows: Sequence[int]) -> None:
        async with permits, asyncio.TaskGroup() as ways:
            for asker in askers:
                ways.create_task(asker.ask(rows))
        on_row(len(rows) * len(askers))

    async with asyncio.TaskGroup() as tasks:
        for rows in askers[0].requests():
            tasks.create_task(one(rows))
    return [asker.finish() for asker in askers]


def _bounded(send: Send, callers: int) -> Send:
    permits = asyncio.Semaphore(callers)

    async def send_bounded(path: str, body: Json) -> Json:
        async with permits:
            return await send(path, body)

    return send_bounded


def _once(send: Send) -> Send:
    """Return a function that sends what is asked again within a while only once."""
    kept: OrderedDict[bytes, asyncio.Future[Json]] = OrderedDict()

    async def send_once(path: str, body: Json) -> Json:
        key = msgspec.json.encode((path, body))
        task = kept.get(key)
        if task is None or (task.done() and task.exception() is not None):  # it may be answered the next time
            task = kept[key] = asyncio.ensure_future(send(path, body))
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return await asyncio.shield(task)

    return send_once


class _Asker:
    """Rows of one kind, and what was said of them so far."""

    def __init__(self, send: Send, head_labels: Sequence[str], dialect: Dialect, data: Labelled) -> None:
        self._send, self._head_labels, self._dialect, self._data = send, head_labels, dialect, data
        self._found = Found()
        self._classified: dict[int, Classified] = {}
        # By what the data says, so that it is the same for all targets, whatever fails.
        self._order: dict[Question, Sequence[str]] = {}
        for row in data.rows:
            if isinstance(row, ScoreRow):
                self._order.setdefault(_question_of(row.labels), row.labels)
            elif isinstance(row, DecideRow):
                for name in row.answers:
                    names = _classes_of(row, name).names
                    self._order.setdefault(_question_of(names, name), names)
        kinds: dict[str, Callable[[Sequence[int]], Awaitable[None]]] = {
            "score": self._score, "rerank": self._rerank, "decide": self._decide, "classify": self._classify,
        }  # fmt: skip
        self._ask_rows = kinds[data.kind]

    def requests(self) -> Iterator[Sequence[int]]:
        """Yield the rows of each request."""
        rows = self._data.rows
        if self._data.kind == "score":
            shared: dict[Any, list[int]] = defaultdict(list)
            for index, row in enumerate(rows):
                assert isinstance(row, ScoreRow)
                shared[row.query, row.labels].append(index)
            for indices in shared.values():
                yield from _parts(indices, MOST_ITEMS)
            return
        yield from _parts(range(len(rows)), MOST_INPUTS if self._data.kind == "classify" else 1)

    async def ask(self, rows: Sequence[int]) -> None:
        """Ask about rows, and note what was said."""
        try:
            await self._ask_rows(rows)
        except CallFailed as failure:
            if failure.reason == "rejected" and len(rows) > 1:
                for row in rows:
                    await self.ask([row])
            else:
                self._found.failures |= dict.fromkeys(rows, str(failure))

    def finish(self) -> Found:
        """Return all that was said, in the order of the rows."""
        if self._classified:
            self._name_classes()
        found = self._found
        # A row counts as a whole: of one that failed in part, nothing does.
        found.answers = [
            each for each in sorted(found.answers, key=lambda each: each.row) if each.row not in found.failures
        ]
        found.rankings.sort(key=lambda each: each.row)
        return found

    async def _score(self, rows: Sequence[int]) -> None:
        assert self._dialect.score is not None
        asked = [row for index in rows if isinstance(row := self._data.rows[index], ScoreRow)]
        first = asked[0]
        scored = await self._dialect.score(self._send, first.query, [row.item for row in asked], first.labels)
        question = _question_of(first.labels)
        for index, row, each in zip(rows, asked, scored, strict=True):
            self._note(index, question, first.labels, each, row.label, is_ordered=True)

    async def _rerank(self, rows: Sequence[int]) -> None:
        assert self._dialect.rerank is not None
        (index,) = rows
        row = self._data.rows[index]
        assert isinstance(row, RerankRow)
        scores = np.asarray(await self._dialect.rerank(self._send, row.query, row.documents), np.float64)
        if not np.isfinite(scores).all():
            raise CallFailed("missing_scores", "Some scores are not finite.")
        self._found.rankings.append(RowRanking(index, scores, np.asarray(row.relevance)))

    async def _decide(self, rows: Sequence[int]) -> None:
        assert self._dialect.decide is not None
        (index,) = rows
        row = self._data.rows[index]
        assert isinstance(row, DecideRow)
        told = await self._dialect.decide(self._send, row.state, {name: row.questions[name] for name in row.answers})
        for name in row.answers:
            classes = _classes_of(row, name)
            self._note(
                index,
                _question_of(classes.names, name),
                classes.names,
                told[name],
                truth_of(row, name),
                is_ordered=classes.is_ordered,
            )

    async def _classify(self, rows: Sequence[int]) -> None:
        assert self._dialect.classify is not None
        inputs = [row.input for index in rows if isinstance(row := self._data.rows[index], ClassifyRow)]
        self._classified |= dict(zip(rows, await self._dialect.classify(self._send, inputs), strict=True))

    def _note(
        self,
        row: int,
        question: Question,
        names: Sequence[str],
        said: Distribution | CallFailed,
        truth: int,
        *,
        is_ordered: bool,
    ) -> None:
        """Keep an answer, or why there is none."""
        if isinstance(said, CallFailed):
            self._found.failures[row] = str(said)
            return
        values = np.asarray(said.probabilities, np.float64)
        if len(values) != len(names) or not np.isfinite(values).all() or values.min() < 0 or values.sum() <= 0:
            self._found.failures[row] = "The reply has no probability for each class."
            return
        answer = RowAnswer(row, question, names, values.tolist(), truth, is_ordered, said.mass)
        self._found.answers.append(answer.in_order(self._order.setdefault(question, names)))

    def _name_classes(self) -> None:
        """Say which row of the head is which label, and keep the answers.

        Names are those of the checkpoint, or what replies call each row where it is the most probable one.
        """
        width = max(len(each.probabilities) for each in self._classified.values())
        names = dict(enumerate(self._head_labels)) if len(self._head_labels) == width else {}
        counted: dict[int, Counter[str]] = defaultdict(Counter)
        for each in self._classified.values():
            counted[int(np.argmax(each.probabilities))][each.label] += 1
        names |= {index: labels.most_common(1)[0][0] for index, labels in counted.items()}
        wanted = {row.label for row in self._data.rows if isinstance(row, ClassifyRow)}
        missing = [index for index in range(width) if index not in names]
        unseen = wanted - set(names.values())
        if len(missing) == len(unseen) == 1:
            names[missing[0]] = unseen.pop()
        named = tuple(names.get(index, f"row {index}") for index in range(width))
        for index, each in self._classified.items():
            row = self._data.rows[index]
            assert isinstance(row, ClassifyRow)
            if row.label not in named:
                self._found.failures[index] = (
                    f"The head has no label {row.label[:80]!r} that is known here. Name the checkpoint with --model."
                )
            elif width < 2 or abs(float(np.sum(each.probabilities)) - 1) > _SUM:
                self._found.failures[index] = "The head tells no distribution over two labels or more."
            else:
                self._note(
                    index,
                    _question_of(named),
                    named,
                    Distribution(each.probabilities, None),
                    named.index(row.label),
                    is_ordered=width == 2,
                )


def _parts(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    rest = iter(values)
    while part := tuple(itertools.islice(rest, size)):
        yield part


def _question_of(names: Sequence[str], name: str = "") -> Question:
    return name, tuple(sorted(names))


def _classes_of(row: DecideRow, name: str) -> Classes:
    classes = classes_of(row.questions[name])
    assert classes is not None, "the data was looked at"
    return classes
