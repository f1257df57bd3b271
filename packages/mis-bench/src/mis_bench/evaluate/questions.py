"""Questions of System One in labelled data: their classes, the right one, and what they are for OpenAI's decisions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mis_bench.targets.asking import Json
from mis_core.errors import ConfigError
from mis_core.labelled import DecideRow

NO_YES = ("false", "true")
"""Classes of a question of yes or no."""

_ASKED = {"choice": "Which of these is it?", "score": "Which of these levels is it?"}


class Classes(NamedTuple):
    """The classes of a question.

    Attributes:
        names: In their order.
        is_ordered: Whether they are levels.
    """

    names: tuple[str, ...]
    is_ordered: bool


def classes_of(question: Any) -> Classes | None:
    """Return the classes of a question; None if it is none of yes or no, of a choice, or of a score."""
    match question:
        case {"type": "noul"}:
            return Classes(NO_YES, True)
        case {"type": "choice", "criteria": dict(criteria)} if len(criteria) > 1:
            return Classes(tuple(criteria), False)
        case {"type": "score", "criteria": list(criteria)} if len(criteria) > 1:
            return Classes(tuple(map(str, range(len(criteria)))), True)
    return None


def truth_of(row: DecideRow, name: str) -> int:
    """Return the index of the right class of a question.

    Raises:
        ConfigError: the question is none of System One's, or the answer is none of its classes.
    """
    if classes_of(row.questions[name]) is None:
        what = "a noul, a choice with two options or more in criteria, or a score with two levels or more"
        raise ConfigError(f"{row.where}: questions.{name} must be {what}.", "data")
    return row.right_option(name)


def as_openai(name: str, question: Mapping[str, Any], text: Any) -> Json:
    """Return a question as OpenAI's decisions have it.

    Args:
        name: Its id.
        question: As System One has it.
        text: Makes a text of what may be an object.
    """
    criteria = question.get("criteria") or {}
    said = question.get("instructions")
    if question["type"] == "noul":
        sides = [f"{side} means: {text(criteria[side])}" for side in ("true", "false") if side in criteria]
        lines = [*([text(said)] if said else []), *sides]
        return {"type": "predicate", "name": name, "instructions": "\n\n".join(lines)}
    asked = {"type": question["type"], "name": name, "instructions": text(said) if said else _ASKED[question["type"]]}
    if question["type"] == "score":
        return asked | {"levels": [{"label": text(level)} for level in criteria]}
    choices = [
        {"value": value} if about is None else {"value": value, "description": text(about)}
        for value, about in criteria.items()
    ]
    return asked | {"choices": choices}
