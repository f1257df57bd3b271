"""Body and reply of `POST /v1/score`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, WithJsonSchema

TokenId = Annotated[int, Field(ge=0)]
_Text = Annotated[str, Field(min_length=1)]
_Tokens = Annotated[list[TokenId], Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1)]
_TokenLists = Annotated[list[list[TokenId]], Field(min_length=1)]
_LabelLists = Annotated[list[_Tokens], Field(min_length=1)]

_EXAMPLES: list[Any] = [
    {
        "query": "Is it about animals? ",
        "items": ["A cat sleeps.", "Rain."],
        "labels": [" yes", " no"],
        "apply_softmax": True,
    },
    {"query": [3872, 432, 911], "items": [[362, 8251], [48124]], "label_token_ids": [9834, 902]},
]


_REPLY_EXAMPLE: dict[str, Any] = {
    "id": "score-5f0e1c",
    "object": "scoring",
    "created": 1763712000,
    "model": "Qwen3-0.6B",
    "scores": [[0.93, 0.07], [0.12, 0.88]],
    "token_logprobs": None,
    "usage": {
        "prompt_tokens": 12,
        "completion_tokens": 0,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
}


class ScoreBody(BaseModel):
    """Describes the body in the OpenAPI document; `mis_core.scoring.validation` checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": _EXAMPLES})

    query: _Text | _Tokens = Field(description="The shared text or token ids; not empty.")
    items: str | _Texts | _TokenLists = Field(
        description="What to score after the query: texts, or lists of token ids, as the query is. There is at least "
        "one item, which may be empty. One string is one item."
    )
    label_token_ids: _Tokens | _LabelLists | None = Field(
        default=None,
        description="Tokens whose probability after `query + item` is returned, or one list per item. "
        "Required unless `labels` is given.",
    )
    labels: _Texts | None = Field(default=None, description="The labels as texts; each must be a single token.")
    apply_softmax: bool = Field(
        default=False, description="Return a softmax over the labels instead of full-vocabulary probabilities."
    )
    item_first: bool = Field(default=False, description="Put each item before the query instead of after it.")
    temperature: float = Field(
        default=1.0, gt=0, description="Divides the label log-probabilities; values other than 1 need `apply_softmax`."
    )
    return_token_logprobs: bool = Field(
        default=False, description="Also return full-vocabulary natural log-probabilities."
    )
    model: str | None = Field(default=None, description="The served model; any other name is refused.")
    cache_salt: str | None = Field(
        default=None, description="Requests share cached prefixes only with requests that have the same salt."
    )
    add_special_tokens: bool = Field(
        default=True,
        description="Add the tokenizer's special tokens, such as BOS, to texts that do not start with them.",
    )


Rows = Annotated[
    msgspec.Raw,
    InstanceOf(),
    WithJsonSchema({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}),
]
"""One list of numbers per item, encoded before."""


@dataclass(frozen=True, slots=True)
class PromptTokensDetails:
    """Where prompt tokens came from."""

    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreUsage:
    """Token counts; the query counts once, however many items there are."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReply:
    """Scores in the order of the request's items and labels."""

    __pydantic_config__ = ConfigDict(json_schema_extra={"examples": [_REPLY_EXAMPLE]})

    id: str
    object: Literal["scoring"] = "scoring"
    created: int
    model: str
    scores: Rows
    token_logprobs: Rows | None
    usage: ScoreUsage
