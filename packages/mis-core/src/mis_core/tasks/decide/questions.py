"""Questions of decisions: what a request asks, and the text in which a model reads it.

A question is asked so that the next token is its answer: `Yes` or `No`, or the code of an option. It begins with the
same words whatever it asks, and ends with the same ones for all questions of its kind.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Annotated

from mis_core.config import ChoiceOrder
from mis_core.tasks.decide.content import TEXT_OR_JSON, Content, as_text, read_content
from mis_core.tasks.fields.body import about
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.values import kind

MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_ROTATIONS = 8

ReadingOrder = Annotated[
    ChoiceOrder | None,
    about(
        "The order in which options are read; `--choice-order` sets the default. `given` keeps your order. The others "
        "do not depend on it: `sorted` reads one order, `reversed` two, and `independent` up to 8; they read levels "
        "both ways."
    ),
]
"""The type of the field that chooses the order of options."""

BEGIN = "About all of the above:\n\n"
_ASKED = {
    "predicate": "Decide between yes and no.",
    "choice": "Which of the options fits best?",
    "score": "Which of the levels fits best?",
}
"""What is asked where there are no instructions."""

_CODES_END = "\n\nAnswer with the code of exactly one of them, and with nothing else."


@dataclass(frozen=True, slots=True)
class Option:
    """One of the answers that a question allows.

    Attributes:
        value: What the answer repeats: of a choice its value, of a level its label.
        description: What is said of it beside, or None.
    """

    value: Content | bool
    description: Content | None

    @property
    def shown(self) -> str:
        """The value as the model reads it."""
        return str(self.value).lower() if isinstance(self.value, bool) else as_text(self.value)

    def line(self, truths: Container[str]) -> str:
        """What the model reads behind its code; a text beside the truth value of the same name is in quotes."""
        shown = f'"{self.shown}"' if isinstance(self.value, str) and self.shown in truths else self.shown
        return shown if self.description is None else f"{shown}: {as_text(self.description)}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        kind: `predicate`, `choice` or `score`.
        name: What its answer is called, or None.
        instructions: What is asked; None where that goes without saying.
        options: Choices or levels in their order; none of a predicate.
        sides: Of a predicate what counts as yes and what as no, where that was said.
    """

    kind: str
    name: str | None
    instructions: Content | None
    options: tuple[Option, ...] = ()
    sides: tuple[Content | None, Content | None] = (None, None)

    @property
    def texts(self) -> list[str]:
        """All texts that were given."""
        options = (each for option in self.options for each in (option.shown, option.description))
        return [as_text(each) for each in (self.instructions, *options, *self.sides) if each is not None]

    def ending(self, words: Sequence[str]) -> str:
        """Return how its text ends, which says what to answer with.

        Args:
            words: Of a predicate the words for yes and no.
        """
        if self.kind != "predicate":
            return _CODES_END
        return f"\n\nIs that true? Answer {words[0]} or {words[1]}, and with nothing else."

    def text(self, labels: Sequence[str], order: Sequence[int], *, in_one_order: bool) -> str:
        """Return what the model reads.

        Args:
            labels: Of a predicate the words for yes and no, else one code for each option, in the order they are read.
            order: Which option is read at each place.
            in_one_order: Whether it is read in this order only; then it is said which way levels go.
        """
        listed = "".join(
            f"\n\n{word} means: {as_text(side)}"
            for word, side in zip(labels, self.sides, strict=False)
            if side is not None
        )
        if self.options:
            levels = "Levels, from the lowest to the highest" if in_one_order else "Levels"
            title = levels if self.kind == "score" else "Options"
            truths = {option.shown for option in self.options if isinstance(option.value, bool)}
            options = (self.options[index].line(truths) for index in order)
            lines = (f"{label}. {line}" for label, line in zip(labels, options, strict=True))
            listed = f"\n\n{title}:\n" + "\n".join(lines)
        instructions = _ASKED[self.kind] if self.instructions is None else as_text(self.instructions)
        return f"{BEGIN}{instructions}{listed}{self.ending(labels)}"

    def orders(self, choice_order: ChoiceOrder) -> list[list[int]]:
        """Return the orders in which the options are read, each as indices of options.

        Args:
            choice_order: `given`: as they were given. Otherwise choices are sorted first: `sorted` reads them so,
                `reversed` backwards, too, and `independent` in rotations, at most `MAX_ROTATIONS` evenly apart. All
                three read levels, which have an order of their own, forwards and backwards. Of a predicate, whose
                options are yes and no, the order is always that.
        """
        count = len(self.options) or len(self.sides)
        given = list(range(count))
        if choice_order == "given" or self.kind == "predicate":
            return [given]
        if self.kind == "score":
            return [given, given[::-1]]
        ordered = sorted(given, key=lambda index: _sort_key(self.options[index]))
        if choice_order != "independent":
            return [ordered, ordered[::-1]] if choice_order == "reversed" else [ordered]
        rotations = min(count, MAX_ROTATIONS)
        begins = [rotation * count // rotations for rotation in range(rotations)]
        return [ordered[begin:] + ordered[:begin] for begin in begins]


def read_question(source: Field) -> Question:
    """Read an element of the field `questions`.

    Raises:
        RequestError: `invalid_questions`, `unknown_parameter`, or `unsupported_parameter` for images.
    """
    name = Field(source.member("type"), f"{source.path}.type").one_of("predicate", "choice", "score")
    lists = {"predicate": (), "choice": ("choices",), "score": ("levels",)}[name]
    fields = source.members(("type", "instructions", *lists), ("name",))
    options: tuple[Option, ...] = ()
    if name == "choice":
        options = _read_choices(fields["choices"])
    elif name == "score":
        options = tuple(_read_level(level) for level in fields["levels"].elements(2, MAX_LEVELS))
    return Question(
        kind=name,
        name=fields["name"].text() if "name" in fields else None,
        instructions=read_content(fields["instructions"], TEXT_OR_JSON, may_break=False),
        options=options,
    )


def _read_choices(choices: Field) -> tuple[Option, ...]:
    options: dict[tuple[bool, str], Option] = {}
    for choice in choices.elements(2, MAX_CHOICES):
        fields = choice.members(("value",), ("description",))
        value = fields["value"].value
        if not isinstance(value, (str, bool)):
            raise fields["value"].error(f"must be a text, true or false, not {kind(value)}.")
        option = Option(value if isinstance(value, bool) else fields["value"].text(), _description(fields))
        if _sort_key(option) in options:
            raise fields["value"].error("is already the value of an earlier choice.")
        options[_sort_key(option)] = option
    return tuple(options.values())


def _read_level(level: Field) -> Option:
    fields = level.members(("label",), ("description",))
    return Option(fields["label"].text(), _description(fields))


def _description(fields: dict[str, Field]) -> str | None:
    return fields["description"].text() if "description" in fields else None


def _sort_key(option: Option) -> tuple[bool, str]:
    """Truth values before texts; false before true, and texts by their code points."""
    return isinstance(option.value, str), option.shown
