"""Requests of System One as workloads: a state, and questions, each the JSON of its body.

Drawn ones are named `systemone-Q-N-L`: a state of Q words and N questions whose instructions have L words, in turn a
choice, a yes or no, a choice, a yes or no, and a score. Choices have 4 options and scores as many levels; `@255` at the
end of a name asks for 255, which makes scores choices, since they have at most 10. Recorded ones are read from a file.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, JsonValue, ValidationError

OPTIONS = 4
"""Options of a choice, unless a name asks for more."""

MOST_OPTIONS, MOST_LEVELS = 255, 10
"""What the protocol allows (jevcompat's specification 0.1, section 3)."""

MIX = ("choice", "noul", "choice", "noul", "score")
"""Kinds of questions, in turn: of 50 they are 20 choices, 20 of yes or no, and 10 scores."""

_OPTION_WORDS = 2


class RecordedRequest(BaseModel):
    """A line of a file of requests; what else it has is not read."""

    state: JsonValue
    questions: dict[str, dict[str, JsonValue]] = Field(min_length=1)


def words_of(words: int, options: int) -> int:
    """Return the words that a question takes: those of its instructions and, if it is a choice, of its options."""
    return words + _OPTION_WORDS * options


def questions(rows: Sequence[Sequence[str]], words: int, options: int) -> tuple[str, ...]:
    """Return questions as JSON.

    Args:
        rows: Words for each, as many as `words_of` says.
        words: Of the instructions.
        options: Of choices.
    """
    kinds = MIX if options <= MOST_LEVELS else ("choice",)
    return tuple(
        _question(kind, " ".join(row[:words]), _texts(row[words:]))
        for kind, row in zip(islice(cycle(kinds), len(rows)), rows, strict=True)
    )


def numbered(number: int, question: str) -> str:
    """Put a number in front of a question's instructions, so that no earlier one had its tokens."""
    fields = json.loads(question)
    given = fields.get("instructions") or ""
    said = given if isinstance(given, str) else json.dumps(given)
    return json.dumps(fields | {"instructions": f"{number} {said}".rstrip()})


def body(state: str, asked: Sequence[str]) -> dict[str, Any]:
    """Return the body that asks questions about a state; the questions are named `q0`, `q1` and so on."""
    return {"state": state, "questions": {f"q{index}": json.loads(each) for index, each in enumerate(asked)}}


def first_probability(question: str, answer: Any) -> float:
    """Return an answer as one number: the probability of yes or of the first option, or the share of the top level.

    Raises `KeyError`, `TypeError` or `ValueError` if it is no answer to that question.
    """
    fields = json.loads(question)
    if fields["type"] == "noul":
        return float(answer["noul"])
    if fields["type"] == "choice":
        return float(answer["probabilities"][next(iter(fields["criteria"]))])
    return float(answer["score"]) / max(1, len(fields["criteria"]) - 1)


def recorded(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the state and the questions of every line of a file.

    A state that is no text is read as compact JSON, as our prompt has it; ids of questions are not kept.

    Raises:
        ValueError: a line is no request; names file, line and field.
        OSError: it cannot be read.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = RecordedRequest.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise ValueError(f"{path}:{number}: {where}: {first['msg']}") from None
        state = found.state if isinstance(found.state, str) else _as_json(found.state)
        yield state, tuple(_as_json(each) for each in found.questions.values())


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _question(kind: str, instructions: str, texts: Sequence[str]) -> str:
    fields: dict[str, Any] = {"type": kind, "instructions": instructions}
    if kind == "choice":
        fields["criteria"] = {f"{text} {index}": None for index, text in enumerate(texts, 1)}
    if kind == "score":
        fields["criteria"] = list(texts)
    return json.dumps(fields)


def _texts(words: Sequence[str]) -> list[str]:
    return [" ".join(words[start : start + _OPTION_WORDS]) for start in range(0, len(words), _OPTION_WORDS)]
