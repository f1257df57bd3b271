"""Other ways to ask what labelled data asks, so that the same rows tell which one is best.

A file of wordings is an object; each of its names is one way to ask all rows. Of decisions a wording says for some
questions what is asked in their place, and of scores the texts around query and item, and the labels.
"""

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Float64
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mis_bench.evaluate.dialects import Dialect, Distribution, Scored, Send
from mis_bench.evaluate.questions import NO_YES, Classes, classes_of
from mis_bench.targets.target import CallFailed
from mis_core.errors import ConfigError, shown
from mis_core.labelled import DecideRow, Labelled, ScoreRow, option_of

MOST = 64
"""Wordings of a file, at most."""

_MOST_BYTES = 16 * 1024 * 1024
_SHOWN = 200
_UNCLEAR = "{where}.means: must say which answer of the data each of {names} means."
_TEMPLATES = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


class _ScoreFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wording of scores, as the file has it.

    Attributes:
        query: Jinja template of the query, which gets `query`.
        item: Jinja template of an item, which gets `query` and `item`.
        labels: In the place of those of each row, in their order.
    """

    query: str = "{{ query }}"
    item: str = "{{ item }}"
    labels: tuple[str, ...] = ()


class AskedPart(NamedTuple):
    """A question that is asked.

    Attributes:
        about: Which answer it is about, if each has its own question.
        question: Itself, as System One has it.
        means: Which of its classes, in rows, means which of those of the data's question, in columns.
    """

    about: str | None
    question: Any
    means: Float64[np.ndarray, "labels classes"]


@dataclass(frozen=True, slots=True, eq=False)
class Wording:
    """One way to ask all rows.

    Attributes:
        name: Its own.
        where: Where it stands, for messages.
        score: Texts of scores.
        questions: By the id of a question what is asked in its place, as the file has it.
    """

    name: str
    where: str
    score: _ScoreFields = field(default_factory=_ScoreFields)
    questions: Mapping[str, Any] = field(default_factory=dict)

    def parts(self, name: str, question: Any) -> Sequence[AskedPart]:
        """Return what is asked in the place of a question.

        Raises:
            ConfigError: it cannot answer that question; says why.
        """
        classes = classes_of(question)
        assert classes is not None, "as rows are checked first"
        put = self.questions.get(name)
        if put is None:
            return [AskedPart(None, question, np.eye(len(classes.names)))]
        where = f"{self.where}.{name}"
        if not isinstance(put, dict):
            raise _error(f"{where}: must be a question, or a noul question for each answer.")
        if isinstance(put.get("type"), str):
            return [_instead(put, question, classes, where)]
        return _one_by_one(put, question, classes, where)

    def asked(self, questions: Mapping[str, Any]) -> dict[str, tuple[str, AskedPart]]:
        """Return what is asked in the place of questions: by its id the id of the question, and the part."""
        asked: dict[str, tuple[str, AskedPart]] = {}
        for name, question in questions.items():
            for part in self.parts(name, question):
                own = name if part.about is None else f"{name}: {part.about}"
                while own in asked:
                    own += "'"
                asked[own] = name, part
        return asked

    def over(self, dialect: Dialect) -> Dialect:
        """Return a dialect that asks in this way, and answers what the data asks."""
        return Dialect(
            score=None if dialect.score is None else self._scoring(dialect.score),
            decide=None if dialect.decide is None else self._deciding(dialect.decide),
        )

    def _scoring(self, score: Callable[..., Any]) -> Callable[..., Any]:
        query_of, item_of = (_TEMPLATES.from_string(text) for text in (self.score.query, self.score.item))

        async def ask(send: Send, query: str, items: Sequence[str], labels: Sequence[str]) -> Sequence[Scored]:
            try:
                rendered = [item_of.render(query=query, item=item) for item in items]
                asked = query_of.render(query=query)
            except Exception as error:  # a template may do anything with a text that no row has
                raise CallFailed("rejected", f"A template of {self.name} fails: {error}") from error
            return await score(send, asked, rendered, self.score.labels or labels)

        return ask

    def _deciding(self, decide: Callable[..., Any]) -> Callable[..., Any]:
        async def ask(send: Send, state: Any, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
            asked = self.asked(questions)
            told = await decide(send, state, {own: part.question for own, (_, part) in asked.items()})
            found: dict[str, Scored] = {}
            for name in questions:
                own = [(part, told[each]) for each, (whose, part) in asked.items() if whose == name]
                found[name] = _together(own)
            return found

        return ask


def read_wordings(path: Path, data: Labelled) -> tuple[Wording, ...]:
    """Read a file of wordings, and look whether each can ask all rows.

    Args:
        path: The file, of JSON.
        data: The rows.

    Raises:
        ConfigError: it cannot be read, or is of no use; names the wording, the field and what is wanted.
    """
    if data.kind not in ("score", "decide"):
        raise _error(f"{path}: wordings are for score and decide rows; the data is of kind {data.kind}.")
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise _error(f"{path}: is longer than {_MOST_BYTES:,} bytes.")
        given = msgspec.json.decode(text.removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise _error(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(f"{path}: is not JSON: {error}.") from None
    if not isinstance(given, dict) or not 0 < len(given) <= MOST:
        raise _error(f"{path}: must be an object of 1 to {MOST} wordings, keyed by name.")
    if not all(given):
        raise _error(f"{path}: a wording must have a name.")
    read = _read_scores if data.kind == "score" else _read_questions
    return tuple(read(name, f"{path}, {name}", each, data) for name, each in given.items())


def _read_scores(name: str, where: str, given: Any, data: Labelled) -> Wording:
    try:
        fields = msgspec.convert(given, _ScoreFields)
    except msgspec.ValidationError as error:
        raise _error(f"{where}: {error}.") from None
    rows = [row for row in data.rows if isinstance(row, ScoreRow)]
    if len(set(fields.labels)) < len(fields.labels):
        raise _error(f"{where}.labels: must be different texts.")
    row = rows[0]
    try:
        query, item = (_TEMPLATES.from_string(text) for text in (fields.query, fields.item))
        for row in rows:
            query.render(query=row.query)
            item.render(query=row.query, item=row.item)
    except Exception as error:  # a template may do anything with a text
        raise _error(f"{where}: fails for {row.where}: {error}.") from None
    for row in rows if fields.labels else ():
        if len(row.labels) != len(fields.labels):
            raise _error(f"{where}.labels: must be {len(row.labels)} labels, as many as {row.where} has.")
        if row.labels != rows[0].labels:
            raise _error(f"{where}.labels: replace labels in order, but {row.where} has them in another order.")
    return Wording(name, where, score=fields)


def _read_questions(name: str, where: str, given: Any, data: Labelled) -> Wording:
    if not isinstance(given, dict):
        raise _error(f"{where}: must be an object of questions, keyed by id; {{}} keeps the data's.")
    wording = Wording(name, where, questions=given)
    asked = {
        (each, json.dumps(row.questions[each])): row.questions[each]
        for row in data.rows
        if isinstance(row, DecideRow)
        for each in row.answers
    }
    unknown = set(given) - {each for each, _ in asked}
    if unknown:
        raise _error(f"{where}.{min(unknown)}: no row has an answer to a question with this id.")
    for (each, _), question in asked.items():
        wording.parts(each, question)
    return wording


def _instead(put: Mapping[str, Any], question: Any, classes: Classes, where: str) -> AskedPart:
    """Return a question with classes of its own, each of which means one of the data's."""
    asked = {key: value for key, value in put.items() if key != "means"}
    own, count = _checked(asked, where), len(classes.names)
    if "means" in put:
        meant = [_class(question, answer, where) for answer in _meant(put["means"], asked, own, where)]
    elif asked["type"] != question["type"] or len(own.names) != count:
        raise _error(_UNCLEAR.format(where=where, names=_list(own.names)))
    else:
        meant = _alike(_texts(asked, own), _texts(question, classes), where)
    missing = set(range(count)) - set(meant)
    if missing:
        raise _error(f"{where}.means: no answer means {classes.names[min(missing)]}.")
    return AskedPart(None, asked, np.eye(count)[meant])


def _texts(question: Any, classes: Classes) -> list[str]:
    """Return what the classes of a question are called where it is read: levels by their texts."""
    return list(map(str, question["criteria"])) if question["type"] == "score" else list(classes.names)


def _alike(mine: list[str], theirs: list[str], where: str) -> list[int]:
    """Return the places of classes that have the same names, or new ones at the same places."""
    if sorted(mine) == sorted(theirs) and len(set(mine)) == len(mine):
        return [theirs.index(name) for name in mine]
    if any(name != other and (name in theirs or other in mine) for name, other in zip(mine, theirs, strict=True)):
        raise _error(_UNCLEAR.format(where=where, names=_list(mine)))
    return list(range(len(mine)))


def _class(question: Any, answer: Any, where: str) -> int:
    index = option_of(question, answer)
    if index is None:
        raise _error(f"{where}.means: {shown(repr(answer), _SHOWN)} is not an answer to the data's question.")
    return index


def _meant(means: Any, asked: Mapping[str, Any], own: Classes, where: str) -> list[Any]:
    """Return what each class of a question means, as the file has it."""
    if asked["type"] == "score":
        if isinstance(means, list) and len(means) == len(own.names):
            return means
        raise _error(f"{where}.means: must be a list of {len(own.names)} answers, one for each level.")
    if isinstance(means, dict) and set(means) == set(own.names):
        return [means[name] for name in own.names]
    raise _error(f"{where}.means: must have an answer for each of {_list(own.names)}.")


def _one_by_one(put: Mapping[str, Any], question: Any, classes: Classes, where: str) -> list[AskedPart]:
    """Return a question of yes or no for each answer; their probabilities are made to sum to 1."""
    parts: dict[int, AskedPart] = {}
    for answer, each in put.items():
        index = option_of(question, _as_answer(question, answer))
        if index is None:
            raise _error(f"{where}.{answer}: is neither an answer to the data's question nor a field of one.")
        if _checked(each, f"{where}.{answer}").names != NO_YES:
            raise _error(f"{where}.{answer}: must be a noul question.")
        if index in parts:
            raise _error(f"{where}.{answer}: is the same answer as {parts[index].about}.")
        means = np.zeros((2, len(classes.names)))
        means[1, index] = 1.0
        parts[index] = AskedPart(answer, each, means)
    missing = set(range(len(classes.names))) - set(parts)
    if missing:
        raise _error(f"{where}: has no question for {classes.names[min(missing)]}.")
    return [parts[index] for index in range(len(classes.names))]


def _as_answer(question: Any, name: str) -> bool | str | int:
    """Return an answer from the name of a field."""
    if question["type"] == "noul":
        return {"true": True, "false": False}.get(name, name)
    is_index = question["type"] == "score" and name not in question["criteria"] and name.isdecimal() and len(name) < 9
    return int(name) if is_index else name


def _checked(question: Any, where: str) -> Classes:
    classes = classes_of(question)
    if classes is None:
        what = "a noul, a choice with two options or more in criteria, or a score with two levels or more"
        raise _error(f"{where}: must be {what}.")
    return classes


def _list(names: Sequence[str]) -> str:
    return shown(", ".join(names), _SHOWN)


def _together(told: Sequence[tuple[AskedPart, Scored]]) -> Scored:
    """Return the distribution that parts come to."""
    sums: Float64[np.ndarray, " classes"] = np.zeros(told[0][0].means.shape[1])
    masses: list[float] = []
    for part, said in told:
        if isinstance(said, CallFailed):
            return said
        if len(said.probabilities) != len(part.means):
            return CallFailed("missing_scores", "The reply has no probability for each class.")
        sums += np.asarray(said.probabilities, np.float64) @ part.means
        masses += [] if said.mass is None else [said.mass]
    total = sums.sum()
    if not total > 0:
        return CallFailed("missing_scores", "No answer has a probability above 0.")
    mass = float(np.mean(masses)) if len(masses) == len(told) else None
    return Distribution((sums / total if len(told) > 1 else sums).tolist(), mass)


def _error(message: str) -> ConfigError:
    return ConfigError(message, "wordings")
