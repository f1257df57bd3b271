"""Labelled data: rows that say what the right answer is, for `mis-server calibrate` and `mis-bench evaluate`.

A file is JSONL, or Parquet with the same fields as columns. All rows are of one kind, which follows from their fields:

    score     {"query", "item", "labels": [text, ...], "label": text or index}
    rerank    {"query", "documents": [text, ...], "relevance": [number, ...]}
    decide    {"state", "questions": {id: question}, "answers": {id: true or false, option, or level}}
    classify  {"input", "label"}

Each may have `id`, `slice` and `weight`, too.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mis_core.errors import ConfigError, shown

Kind = Literal["score", "rerank", "decide", "classify"]

MAX_ROWS = 1_000_000
"""Most rows of a file; all are kept in memory."""

_MAX_LINE = 64 * 1024 * 1024
_SHOWN = 200
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FOLDS = 5  # a group larger than a fold leaves folds unequal
_MAX_WEIGHT = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """What rows of all kinds have.

    Attributes:
        where: Where the row is, for messages: `FILE, row 3`.
        id: Its own name, or its number counted from 0.
        slice: Which part of the data it belongs to, or None.
        weight: How much it counts.
    """

    where: str
    id: str
    slice: str | None
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow(LabelledRow):
    """An item after a query, and the index of its label among the labels."""

    kind: ClassVar[Kind] = "score"

    query: str
    item: str
    labels: tuple[str, ...]
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRow(LabelledRow):
    """Documents for a query, and how relevant each is: 0 or more."""

    kind: ClassVar[Kind] = "rerank"

    query: str
    documents: tuple[str, ...]
    relevance: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideRow(LabelledRow):
    """Questions about a state in System One's format, and the right answers by question id.

    The answer to a `noul` question is True or False, to a `choice` the name of an option, and to a `score` the text of
    the level or its index, counted from 0. Questions without an answer are not compared.
    """

    kind: ClassVar[Kind] = "decide"

    state: Any
    questions: Mapping[str, Any]
    answers: Mapping[str, bool | str | int]

    def right_option(self, name: str) -> int:
        """Return the index of the right answer to a question.

        Args:
            name: Id of the question, which must be in System One's format.

        Returns:
            The index among options or levels as they were given; for a `noul` 1 for true and 0 for false.

        Raises:
            ConfigError: the answer is none of them.
        """
        question, answer = self.questions[name], self.answers[name]
        found = option_of(question, answer)
        if found is not None:
            return found
        options = list(question.get("criteria") or ())
        wanted = {
            "noul": "true or false",
            "choice": f"one of {', '.join(map(str, options))}",
            "score": f"a level from 0 to {len(options) - 1}",
        }[question["type"]]
        raise _error(f"{self.where}: answers.{name} must be {wanted}, not {answer!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRow(LabelledRow):
    """An input, and the name of its label."""

    kind: ClassVar[Kind] = "classify"

    input: str
    label: str


Row = ScoreRow | RerankRow | DecideRow | ClassifyRow


@dataclass(frozen=True, slots=True)
class Labelled:
    """The rows of a file.

    Attributes:
        kind: The kind of all rows.
        rows: The rows in their order; at least one.
    """

    kind: Kind
    rows: tuple[Row, ...]


def read_labelled(path: Path, labels: Sequence[str] = ()) -> Labelled:
    """Read labelled data.

    Args:
        path: The file: Parquet if its name ends in `.parquet`, else JSONL.
        labels: The labels of score rows that have none of their own.

    Raises:
        ConfigError: it cannot be read, or a row is not valid; names the row, the field and what is wanted.
    """
    rows: list[Row] = []
    for number, fields in enumerate(_fields_of(path)):
        if number == MAX_ROWS:
            raise _error(f"{path}: has more than {MAX_ROWS:,} rows. Take a sample of them.")
        row = _Reader(f"{path}, row {number + 1}", str(number), fields).row(labels)
        if rows and row.kind != rows[0].kind:
            raise _error(f"{row.where}: is of kind {row.kind}, but the first row is of kind {rows[0].kind}.")
        rows.append(row)
    if not rows:
        raise _error(f"{path}: has no rows.")
    return Labelled(rows[0].kind, tuple(rows))


def option_of(question: Mapping[str, Any], answer: Any) -> int | None:
    """Return the index of the option that an answer names; for a `noul` 1 is true and 0 false. None: it names none.

    Args:
        question: In System One's format; a choice and a score have criteria.
        answer: True or false, the name of an option, or a level by its index or its text.
    """
    kind = question["type"]
    if kind == "noul":
        return int(answer) if isinstance(answer, bool) else None
    options = list(question["criteria"])
    if isinstance(answer, str):
        return options.index(answer) if answer in options else None
    is_place = kind == "score" and isinstance(answer, int) and not isinstance(answer, bool)
    return answer if is_place and 0 <= answer < len(options) else None


def groups_of(rows: Sequence[Row]) -> Int64[np.ndarray, " rows"]:
    """Return a number for each row; rows with something in common have the same.

    Rows may have a query, a state or an input in common, and the text of an item. For rankings only the query
    counts, since they share a corpus. If more than a fifth of the rows would be together, as when the query is an
    instruction, only texts count; if all rows have the same text, only queries count.
    """
    queries = _connected([(_shared(row),) for row in rows])
    if isinstance(rows[0], RerankRow):
        return queries
    texts = _connected([_texts(row) for row in rows])
    both = _connected([(("query", query), text) for query, text in zip(queries.tolist(), texts.tolist(), strict=True)])
    if np.bincount(both).max() <= max(1, len(rows) // _FOLDS):
        return both
    return texts if texts.any() else queries  # groups count from 0


def _shared(row: Row) -> Hashable:
    match row:
        case ScoreRow() | RerankRow():
            return row.query
        case DecideRow():
            return msgspec.json.encode(row.state)
    return row.input


def _texts(row: Row) -> tuple[Hashable, ...]:
    match row:
        case ScoreRow():
            return (row.item,)
    return (_shared(row),)


def _connected(keys: Sequence[tuple[Hashable, ...]]) -> Int64[np.ndarray, " rows"]:
    """Return the connected component of each row, where rows with an equal key are connected."""
    numbers: dict[Hashable, int] = {}
    row_of = [row for row, own in enumerate(keys) for _ in own]
    key_of = [numbers.setdefault(key, len(numbers)) for own in keys for key in own]
    size = len(keys) + len(numbers)
    edges = coo_array((np.ones(len(row_of), bool), (row_of, np.array(key_of) + len(keys))), shape=(size, size))
    return connected_components(edges, directed=False)[1][: len(keys)].astype(np.int64)


def _fields_of(path: Path) -> Iterator[Any]:
    try:
        if path.suffix == ".parquet":
            yield from _rows_of_table(path)
            return
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE + 1):
                number += 1
                if len(line) > _MAX_LINE:
                    raise _error(f"{path}, line {number}: is longer than {_MAX_LINE:,} bytes.")
                if not line.strip():
                    continue
                try:
                    yield msgspec.json.decode(line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise _error(f"{path}, line {number}: is not JSON: {error}.") from None
    except OSError as error:
        raise _error(f"{path}: cannot be read: {error.strerror or error}.") from None


def _rows_of_table(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise _error(f"{path}: reading Parquet needs the package pyarrow: pip install pyarrow.") from None
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise _error(f"{path}: cannot be read as Parquet: {error}.") from None


class _Reader:
    """Reads a row's fields, each of which is checked where it is read."""

    def __init__(self, where: str, number: str, fields: Any) -> None:
        if not isinstance(fields, dict):
            raise _error(f"{where}: is not an object.")
        self._where = where
        self._number = number
        self._fields = {name: value for name, value in fields.items() if value is not None}

    def row(self, labels: Sequence[str]) -> Row:
        """Read the row, of whatever kind its fields say."""
        identity = self._fields.get("id")
        weight = self._number_of("weight", 1.0)
        if not 0 < weight <= _MAX_WEIGHT:
            raise self._wrong("weight", f"a number above 0, at most {_MAX_WEIGHT:,.0f}", weight)
        common = {
            "where": self._where,
            "id": self._number if identity is None else str(identity),
            "slice": None if "slice" not in self._fields else str(self._fields["slice"]),
            "weight": weight,
        }
        if "documents" in self._fields:
            return self._rerank(common)
        if "item" in self._fields:
            return self._score(common, labels)
        if "state" in self._fields:
            return self._decide(common)
        if "input" in self._fields:
            return ClassifyRow(**common, input=self._text("input"), label=self._text("label"))
        raise _error(f"{self._where}: must have item, documents, state or input, which tells its kind.")

    def _score(self, common: dict[str, Any], labels: Sequence[str]) -> ScoreRow:
        own = tuple(self._texts("labels") if "labels" in self._fields else labels)
        if len(own) < 2 or len(set(own)) < len(own):
            what = "a list of at least two different texts, unless --labels gives them"
            raise self._wrong("labels", what, list(own) or None)
        label = self._fields.get("label")
        if isinstance(label, str) and label in own:
            label = own.index(label)
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(own):
            raise self._wrong("label", f"one of the labels {list(own)}, or its index, counted from 0", label)
        return ScoreRow(**common, query=self._text("query"), item=self._text("item"), labels=own, label=label)

    def _rerank(self, common: dict[str, Any]) -> RerankRow:
        documents, given = self._texts("documents"), self._fields.get("relevance")
        wanted = f"a list of {len(documents)} numbers, 0 or more, one for each document"
        if not isinstance(given, list) or len(given) != len(documents):
            raise self._wrong("relevance", wanted, given)
        for each in given:
            if isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each) or each < 0:
                raise self._wrong("relevance", wanted, each)
        relevance = tuple(map(float, given))
        return RerankRow(**common, query=self._text("query"), documents=tuple(documents), relevance=relevance)

    def _decide(self, common: dict[str, Any]) -> DecideRow:
        questions, answers = self._object("questions"), self._object("answers")
        for name, answer in answers.items():
            if name not in questions:
                raise self._wrong("answers", "answers to the row's questions", name)
            if not isinstance(answer, bool | str | int):
                raise self._wrong(f"answers.{name}", "true or false, an option or a level", answer)
        return DecideRow(**common, state=self._fields["state"], questions=questions, answers=answers)

    def _text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def _texts(self, name: str) -> list[str]:
        value = self._fields[name]
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise self._wrong(name, "a list of texts", value)
        return value

    def _object(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name)
        if isinstance(value, str):  # as tables have it
            try:
                value = msgspec.json.decode(value)
            except msgspec.DecodeError:
                raise self._wrong(name, "an object; in a table, its JSON text", value) from None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return {key: each for key, each in value.items() if each is not None}

    def _number_of(self, name: str, default: float) -> float:
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a number", value)
        return float(value)

    def _wrong(self, name: str, wanted: str, value: object) -> ConfigError:
        given = "missing" if value is None else f"not {shown(repr(value), _SHOWN)}"
        return _error(f"{self._where}: {name} must be {wanted}; it is {given}.")


def _error(message: str) -> ConfigError:
    return ConfigError(message, "data")
