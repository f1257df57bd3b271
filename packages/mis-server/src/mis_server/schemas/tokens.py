"""Bodies and replies of `/tokenize` and `/detokenize`, as vLLM has them."""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, WithJsonSchema

from mis_server.schemas.score import Absent, TokenId, absent


class TokenizeBody(BaseModel):
    """Describes the body in the OpenAPI document; the route checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"prompt": " yes"}]})

    prompt: str = Field(description="The text.")
    model: str | None = Field(default=None, description="The served model; any other name is refused.")
    add_special_tokens: bool = Field(
        default=True, description="Add the tokenizer's special tokens, such as BOS, as scoring does."
    )
    return_token_strs: bool = Field(default=False, description="Also return the tokens as the vocabulary spells them.")


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


class DetokenizeBody(BaseModel):
    """Describes the body in the OpenAPI document; the route checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"tokens": [9834]}]})

    tokens: list[TokenId] = Field(description="Token ids.")
    model: str | None = Field(default=None, description="The served model; any other name is refused.")


@dataclass(frozen=True, slots=True)
class DetokenizeReply:
    """The text of token ids."""

    prompt: Annotated[msgspec.Raw, InstanceOf(), WithJsonSchema({"type": "string"})]
