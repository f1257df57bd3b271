"""Body and reply of `POST /v1/classify`, as vLLM has them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mis_server.schemas.score import ScoreUsage, TokenId

_Text = Annotated[str, Field(min_length=1)]
_Tokens = Annotated[list[TokenId], Field(min_length=1)]
_Inputs = _Text | Annotated[list[_Text], Field(min_length=1)] | _Tokens | Annotated[list[_Tokens], Field(min_length=1)]

_EXAMPLES: list[Any] = [{"input": ["A cat sleeps.", "Rain."]}, {"input": [[3872, 432, 911]], "use_activation": False}]

_REPLY_EXAMPLE: dict[str, Any] = {
    "id": "classify-5f0e1c",
    "object": "list",
    "created": 1763712000,
    "model": "Qwen2.5-1.5B-apeach",
    "data": [{"index": 0, "label": "Default", "probs": [0.57, 0.43], "num_classes": 2}],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 0,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
}


class ClassifyBody(BaseModel):
    """Describes the body in the OpenAPI document; `mis_core.tasks.classify` checks what arrives.

    Further fields of vLLM's are accepted without effect, or refused by name.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": _EXAMPLES})

    input: _Inputs = Field(description="A text, several, or their token ids; each is one whole sequence.")
    model: str | None = Field(default=None, description="The served model; any other name is refused.")
    add_special_tokens: bool = Field(
        default=True,
        description="Add the tokenizer's special tokens, such as BOS, to texts that do not start with them.",
    )
    use_activation: bool | None = Field(
        default=True,
        description="Return probabilities; otherwise the head's values. `activation` and `softmax` mean the same.",
    )
    cache_salt: str | None = Field(default=None, description="Accepted as on every route; nothing is cached here.")
    user: str | None = Field(default=None, description="Without effect.")


@dataclass(frozen=True, slots=True)
class Classification:
    """One input: its most probable label, and the probabilities of all, in the order of the head's rows."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyReply:
    """Classes in the order of the request's inputs."""

    __pydantic_config__ = ConfigDict(json_schema_extra={"examples": [_REPLY_EXAMPLE]})

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classification]
    usage: ScoreUsage
