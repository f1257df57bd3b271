"""Body, reply and events of `POST /v1/completions`, as OpenAI has them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field, GetPydanticSchema, InstanceOf, WithJsonSchema

from mis_server.schemas.chat import ChatUsage, Finish
from mis_server.schemas.sampling import SamplingBody
from mis_server.schemas.score import Absent, TokenId, absent

_EXAMPLES: list[Any] = [{"prompt": "Cats purr.", "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}]
_Text = Annotated[str, Field(min_length=1)]
_Tokens = Annotated[list[TokenId], Field(min_length=1)]
_Texts = Annotated[list[_Text], Field(min_length=1)]
_TokenLists = Annotated[list[_Tokens], Field(min_length=1)]


class CompletionBody(SamplingBody):
    """Describes the body in the OpenAPI document; `mis_core.tasks.text.completion` checks what arrives.

    Further fields of OpenAI's are accepted without effect, or refused by name.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": _EXAMPLES})

    prompt: _Text | _Tokens | _Texts | _TokenLists = Field(description="A text, token ids, or a list of either.")
    max_tokens: int | None = Field(
        default=16, ge=0, lt=2**31, description="Most tokens of an answer; 0, with `echo`, only reads the prompt."
    )
    model: str | None = Field(default=None, description="The served model; any other name is refused.")
    echo: bool | None = Field(default=False, description="Begin the answer with the prompt.")
    logprobs: int | None = Field(
        default=None, ge=0, le=20, description="Return log-probabilities, and those of so many most probable tokens."
    )
    n: int | None = Field(default=1, ge=1, le=128, description="How many answers each prompt gets.")
    best_of: int | None = Field(
        default=None, ge=1, le=128, description="Draw so many, and answer with the `n` most probable."
    )
    add_special_tokens: bool | None = Field(
        default=True, description="Add the tokenizer's special tokens, such as BOS, to texts without them."
    )


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
