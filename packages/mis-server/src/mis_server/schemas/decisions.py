"""Body and reply of `POST /v1/decisions`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mis_core.tasks.decide.answers import Answer, DecisionUsage

_QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "refund", "instructions": "The customer wants money back."},
    {
        "type": "choice",
        "instructions": "What is it about?",
        "choices": [{"value": "billing"}, {"value": "delivery", "description": "late or lost parcels"}],
    },
    {"type": "score", "instructions": "How angry?", "levels": [{"label": "calm"}, {"label": "cross"}]},
]
_EXAMPLE: dict[str, Any] = {"input": "Where is my parcel? I want my money back!", "questions": _QUESTIONS}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Breakpoint(_Part):
    """Where a client would have a prompt cached; no effect."""

    mode: Literal["explicit"]


class InputText(_Part):
    """A text."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


class InputJson(_Part):
    """An object, or a list of objects, that the model reads as compact JSON."""

    type: Literal["input_json"]
    data: dict[str, Any] | list[dict[str, Any]]


class QuestionText(_Part):
    """A text."""

    type: Literal["input_text"]
    text: str


class OutputText(_Part):
    """What the assistant said."""

    type: Literal["output_text"]
    text: str


class Refusal(_Part):
    """How the assistant refused."""

    type: Literal["refusal"]
    refusal: str


class UserMessage(_Part):
    """A message of the user."""

    type: Literal["message"] | None = None
    role: Literal["user"]
    content: str | list[InputText | InputJson]


class SystemMessage(_Part):
    """A message of the system or its developer."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer"]
    content: str | list[InputText]


class AssistantMessage(_Part):
    """A message of the assistant."""

    type: Literal["message"] | None = None
    role: Literal["assistant"]
    content: str | list[OutputText | Refusal]
    phase: Literal["commentary", "final_answer"] | None = None


class _Record(_Part):
    call_id: str
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionCall(_Record):
    """A call of a function."""

    type: Literal["function_call"]
    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCall(_Record):
    """A call of a tool."""

    type: Literal["custom_tool_call"]
    name: str
    input: str
    namespace: str | None = None


class ToolOutput(_Record):
    """What a call before it gave."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: str | list[InputText]


class _Question(_Part):
    name: str | None = None
    instructions: str | list[QuestionText | InputJson]


class Predicate(_Question):
    """Is it true?"""

    type: Literal["predicate"]


class ChoiceOption(_Part):
    """What may be chosen; a text and a truth value of the same spelling are two choices."""

    value: str | bool
    description: str | None = None


class Choice(_Question):
    """Which is it?"""

    type: Literal["choice"]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=255)]


class Level(_Part):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(_Question):
    """How much is it?"""

    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2, max_length=10, description="From the lowest to the highest.")]


class CacheOptions(BaseModel):
    """No effect: prefixes are cached on their own."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


_Entry = UserMessage | SystemMessage | AssistantMessage | FunctionCall | CustomToolCall | ToolOutput


class DecisionBody(BaseModel):
    """Describes the body in the OpenAPI document; `mis_core.tasks.decide.task` checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    input: Annotated[str, Field(min_length=1)] | Annotated[list[_Entry], Field(min_length=1)] = Field(
        description="What the questions are about: a text, or messages, tool calls and their outputs; no images."
    )
    questions: Annotated[list[Predicate | Choice | ScoreQuestion], Field(min_length=1, max_length=400)]
    model: str | None = Field(default=None, description="The served model; any other name is refused.")
    choice_order: Literal["given", "independent"] = Field(
        default="given",
        description="`independent`: answers do not depend on the order of choices, which are read in up to 8 orders.",
    )
    on_error: Literal["request", "item"] = Field(
        default="request",
        description="`item`: a question that cannot be answered is a refusal, and the rest are answered.",
    )
    cache_salt: str | None = Field(
        default=None, description="Requests share cached prefixes only with requests that have the same salt."
    )
    prompt_cache_key: str | None = Field(default=None, description="As `cache_salt`; both may be given.")
    prompt_cache_options: CacheOptions | None = Field(default=None, description="No effect.")
    safety_identifier: str | None = Field(default=None, description="No effect.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReply:
    """Answers in the order of the questions."""

    id: str
    object: Literal["decisions"] = "decisions"
    created: int
    model: str
    answers: tuple[Answer, ...]
    usage: DecisionUsage
