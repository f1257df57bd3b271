"""Reply and events of `POST /v1/chat/completions`, as OpenAI has them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import ConfigDict, GetPydanticSchema, InstanceOf, TypeAdapter, WithJsonSchema

from mis_server.schemas.score import Absent, PromptTokensDetails, absent

EXAMPLES: list[Any] = [
    {
        "messages": [{"role": "user", "content": "Do cats purr? Answer yes or no."}],
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 5,
        "labels": ["Yes", "No"],
    }
]

Finish = Literal["stop", "length"]
"""Why an answer ended: at a token or a text that ends it, or because it may not be longer."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """A token that might have come, and its natural log-probability."""

    token: str
    bytes: list[int]
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer, its natural log-probability, and the most probable tokens, best first."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


@dataclass(frozen=True, slots=True)
class ChoiceLogprobs:
    """Log-probabilities of an answer's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


@dataclass(frozen=True, slots=True)
class LabelLogprob:
    """A label that was asked for, and how probable it is over the full vocabulary."""

    token: str
    bytes: list[int]
    token_id: int
    logprob: float
    probability: float


Labels = Annotated[
    msgspec.Raw,
    InstanceOf(),
    WithJsonSchema({"type": "array", "items": TypeAdapter(LabelLogprob).json_schema()}),
]
"""Labels that were asked for, encoded before: they are the same in every answer."""


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """The answer."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """One answer; `labels` only where they are asked for."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Finish
    labels: Labels | Absent = field(default_factory=absent)


Choices = Annotated[list[msgspec.Raw], GetPydanticSchema(lambda _, schema: schema(list[ChatChoice]))]
"""Answers, each encoded when it ended."""


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Token counts; the prompt counts once, however many answers are drawn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Self:
        """Return the counts with their sum."""
        total = prompt_tokens + completion_tokens
        return cls(prompt_tokens, completion_tokens, total, PromptTokensDetails(cached_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """The answers to a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: Choices
    usage: ChatUsage
    system_fingerprint: None = None


@dataclass(frozen=True, slots=True)
class ChunkChoice:
    """A piece of an answer: its beginning with the role, what a token adds, or why it ends."""

    index: int
    delta: dict[str, str]
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Finish | None = None
    labels: Labels | Absent = field(default_factory=absent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChunk:
    """An event of a streamed answer.

    If the usage was asked for, the last one before `[DONE]` has it and no choices, and in the others it is null.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | Absent | None = field(default_factory=absent)
    system_fingerprint: None = None
