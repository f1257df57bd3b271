"""Replies of `/tokenize` and `/detokenize`, as vLLM has them."""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from pydantic import ConfigDict, InstanceOf, WithJsonSchema

from mis_server.schemas.score import Absent, absent


def _encoded(items: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": {"type": items}})


@dataclass(frozen=True, slots=True)
class TokenizeReply:
    """The token ids of a text; `max_model_len` once the model is loaded."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    count: int
    tokens: Annotated[msgspec.Raw, InstanceOf(), _encoded("integer")]
    token_strs: Annotated[msgspec.Raw, InstanceOf(), _encoded("string")] | None
    max_model_len: int | Absent = field(default_factory=absent)


@dataclass(frozen=True, slots=True)
class DetokenizeReply:
    """The text of token ids."""

    prompt: Annotated[msgspec.Raw, InstanceOf(), WithJsonSchema({"type": "string"})]
