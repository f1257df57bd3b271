"""Questions as System One asks them: yes or no, a choice, a score."""

from dataclasses import dataclass
from typing import Any

from mis_core.errors import RequestError
from mis_core.tasks.decide.content import Content, read_any
from mis_core.tasks.decide.questions import MAX_CHOICES, MAX_LEVELS, Option, Question
from mis_core.tasks.fields.field import Field

_KINDS = {"noul": "predicate", "choice": "choice", "score": "score"}
_ABSTAIN = "x_abstain_below"


@dataclass(frozen=True, slots=True)
class AnswerNeeds:
    """What an answer needs to know of a question besides what the model reads.

    Attributes:
        legend: The levels of a score as they were given; nothing of others.
        abstain_below: The least confidence that it wants, or None.
    """

    legend: tuple[Any, ...]
    abstain_below: float | None


def read_question(name: str, source: Field) -> tuple[Question, AnswerNeeds]:
    """Read the question of an id.

    Raises:
        RequestError: `invalid_questions`, `unknown_parameter`, or `unsupported_parameter` for boxes.
    """
    given = source.member("type")
    if given == "box":
        message = f"{source.path} asks for a place in an image; the model reads text only."
        raise RequestError("unsupported_parameter", message, source.path)
    kind = Field(given, f"{source.path}.type").one_of(*_KINDS)
    required = ("type",) if kind == "noul" else ("type", "criteria")
    fields = source.members(required, ("instructions", "criteria", _ABSTAIN), ignored="x_")
    abstain_below = fields[_ABSTAIN].number(0, 1) if _ABSTAIN in fields else None
    instructions = (read_any(fields["instructions"]) if "instructions" in fields else None) or None
    options: tuple[Option, ...] = ()
    sides: tuple[Content | None, Content | None] = (None, None)
    legend: tuple[Any, ...] = ()
    match kind:
        case "noul":
            sides = _read_sides(fields)
            if instructions is None and sides == (None, None):
                raise source.error("needs instructions, or criteria for true or false.")
        case "choice":
            options = _read_choices(fields["criteria"])
        case "score":
            levels = fields["criteria"].elements(2, MAX_LEVELS)
            options = tuple(Option(read_any(level), None) for level in levels)
            legend = tuple(level.value for level in levels)
    question = Question(_KINDS[kind], name, instructions, options, sides)
    return question, AnswerNeeds(legend, abstain_below)


def _read_sides(fields: dict[str, Field]) -> tuple[Content | None, Content | None]:
    if "criteria" not in fields:
        return None, None
    sides = fields["criteria"].members((), ("true", "false"))
    yes, no = (read_any(sides[name]) if name in sides else None for name in ("true", "false"))
    return yes, no


def _read_choices(criteria: Field) -> tuple[Option, ...]:
    return tuple(
        Option(name, None if choice.value is None else read_any(choice))
        for name, choice in criteria.entries(2, MAX_CHOICES).items()
    )
