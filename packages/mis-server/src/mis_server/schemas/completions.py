"""Reply and events of `POST /v1/completions`, as OpenAI has them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, GetPydanticSchema, InstanceOf, WithJsonSchema

from mis_server.schemas.chat import ChatUsage, Finish
from mis_server.schemas.score import Absent, absent

EXAMPLES: list[Any] = [{"prompt": "Cats purr.", "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}]


def _encoded(items: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": items})


_NUMBER_OR_NULL = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_NUMBERS_BY_TOKEN = {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Tokens of the text in order, encoded before; the first one of a prompt has no log-probabilities."""

    tokens: Annotated[msgspec.Raw, InstanceOf(), _encoded({"type": "string"})]
    token_logprobs: Annotated[msgspec.Raw, InstanceOf(), _encoded(_NUMBER_OR_NULL)]
    top_logprobs: Annotated[msgspec.Raw, InstanceOf(), _encoded(_NUMBERS_BY_TOKEN)]
    text_offset: Annotated[msgspec.Raw, InstanceOf(), _encoded({"type": "integer"})]


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """One answer."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Finish | None  # null in events that others of the same answer follow


Choices = Annotated[
    list[CompletionChoice] | list[msgspec.Raw], GetPydanticSchema(lambda _, schema: schema(list[CompletionChoice]))
]
"""Answers: in an event a piece of one, in a reply each encoded when it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionReply:
    """The answers to all prompts, or an event: a piece of one of them, or the usage at the end.

    In events, `usage` is null before the end if it was asked for, and otherwise is not there.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: Choices
    usage: ChatUsage | Absent | None = field(default_factory=absent)
    system_fingerprint: None = None
