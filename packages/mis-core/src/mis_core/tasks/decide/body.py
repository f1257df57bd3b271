"""The body of decisions, as OpenAI has them.

`input` and `questions` have readers of their own, in `conversation` and `questions`: an output of a tool names the call
before it, and what a part may be depends on who says it. The types of their members here are for documents.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mis_core.tasks.decide.questions import MAX_CHOICES, MAX_LEVELS, MAX_QUESTIONS, ReadingOrder
from mis_core.tasks.fields.body import NO_EFFECT, Body, CacheSalt, Calibration, ModelName, about
from mis_core.tasks.fields.item_errors import OnError


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """An object within a body."""


class Breakpoint(Member, frozen=True):
    """Where a client would have a prompt cached; no effect."""

    mode: Literal["explicit"]


class QuestionText(Member, frozen=True, tag_field="type", tag="input_text"):
    """A text."""

    text: str


class InputText(QuestionText, frozen=True, tag_field="type", tag="input_text"):
    """A text."""

    prompt_cache_breakpoint: Breakpoint | None = None


class InputJson(Member, frozen=True, tag_field="type", tag="input_json"):
    """An object, or a list of objects, that the model reads as compact JSON."""

    data: dict[str, Any] | list[dict[str, Any]]


class OutputText(Member, frozen=True, tag_field="type", tag="output_text"):
    """What the assistant said."""

    text: str


class Refusal(Member, frozen=True, tag_field="type", tag="refusal"):
    """How the assistant refused."""

    refusal: str


class UserMessage(Member, frozen=True):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[InputText | InputJson]
    type: Literal["message"] | None = None


class SystemMessage(Member, frozen=True):
    """A message of the system or its developer."""

    role: Literal["system", "developer"]
    content: str | list[InputText]
    type: Literal["message"] | None = None


class AssistantMessage(Member, frozen=True):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str | list[OutputText | Refusal]
    type: Literal["message"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class ToolRecord(Member, frozen=True, kw_only=True):
    """A call of a tool, or its output."""

    call_id: str
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionCall(ToolRecord, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCall(ToolRecord, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool."""

    name: str
    input: str
    namespace: str | None = None


class ToolOutput(ToolRecord, frozen=True, kw_only=True):
    """What a call before it gave."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: str | list[InputText]


class Predicate(Member, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    """Is it true?"""

    instructions: str | list[QuestionText | InputJson]
    name: str | None = None


class ChoiceOption(Member, frozen=True):
    """What may be chosen; a text and a truth value of the same spelling are two choices."""

    value: str | bool
    description: str | None = None


class Choice(Predicate, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """Which is it?"""

    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=MAX_CHOICES)]


class Level(Member, frozen=True):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(Predicate, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """How much is it?"""

    levels: Annotated[
        list[Level], Meta(min_length=2, max_length=MAX_LEVELS, description="From the lowest to the highest.")
    ]


class CacheOptions(Member, frozen=True):
    """No effect: prefixes are cached on their own."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


class DecisionBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /v1/decisions`."""

    input: Annotated[
        Any,
        about(
            "What the questions are about. Images are refused.",
            noun="a text, or at most 10,000 messages, calls of tools and their outputs",
            schemas=(Annotated[str, Meta(min_length=1)],),
            each=(UserMessage, SystemMessage, AssistantMessage, FunctionCall, CustomToolCall, ToolOutput),
        ),
    ]
    questions: Annotated[
        list[Any],
        Meta(min_length=1),
        about(
            "What to answer. Each question is answered independently.",
            noun=f"a list of 1 to {MAX_QUESTIONS} questions",
            each=Predicate | Choice | ScoreQuestion,
            empty="empty_questions",
        ),
    ]
    model: ModelName = None
    on_error: OnError = "request"
    choice_order: ReadingOrder = None
    cache_salt: CacheSalt = None
    calibration: Calibration = None
    prompt_cache_key: Annotated[
        str | None, about("As `cache_salt`. If both are given, prefixes are shared only where both match.")
    ] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, NO_EFFECT] = None
    safety_identifier: Annotated[str | None, NO_EFFECT] = None
