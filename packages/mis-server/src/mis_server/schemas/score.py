"""Reply of `POST /v1/score`."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field, InstanceOf, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from mis_core.tasks.fields.item_errors import ItemError

TokenId = Annotated[int, Field(ge=0)]

EXAMPLES: list[Any] = [
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


_NUMBERS = {"type": "array", "items": {"type": "number"}}

Rows = Annotated[
    msgspec.Raw,
    InstanceOf(),
    WithJsonSchema({"type": "array", "items": {"anyOf": [_NUMBERS, {"type": "null"}]}}),
]
"""One list of numbers per item, null for an item that was not scored; encoded before."""


Absent = SkipJsonSchema[msgspec.UnsetType]
"""The type of a field that a reply may leave out; its class needs `arbitrary_types_allowed`."""


Calibration = str | Absent | None
"""The type of what a reply says of its calibration: a digest, null for none, and nothing where none is loaded."""


def absent() -> msgspec.UnsetType:
    """Return the value that leaves a field out."""
    return msgspec.UNSET


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


@dataclass(frozen=True, slots=True)
class Placement:
    """A run of tokens of the request that one step computed side by side.

    Attributes:
        step: Which of the request's steps, from 0.
        shard: Which of the devices along `data` computed it, from 0.
        row: Its first row among those of the step.
        item: The item; null: the query. Of items that are the same, the first.
        tokens: Its tokens.
        context_tokens: Tokens before it that it sees in pages of the KV cache.
    """

    step: int
    shard: int
    row: int
    item: int | None
    tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLayout:
    """How a request was laid out.

    Attributes:
        algorithm: `serial`, `packed` or `prefill_extend`.
        reason: Why.
        steps: Device calls that computed some part of it.
        segments: Runs of new tokens behind the query.
        contexts: Different beginnings of the query that they see.
        cached_tokens: Tokens of the query that were not computed again.
        query_tokens: Tokens of the query that some item sees.
        step_tokens: Most new tokens of a step, on each device along `data`.
        placements: Where each part of it was computed, in the order of the steps.
    """

    algorithm: str
    reason: str
    steps: int
    segments: int
    contexts: int
    cached_tokens: int
    query_tokens: int
    step_tokens: int
    placements: list[Placement]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReply:
    """Scores in the order of the request's items and labels.

    `errors` and `layout` are there only where they are asked for, and `calibration` only where one is loaded: the
    digest of what the scores are calibrated by, or null.
    """

    __pydantic_config__ = ConfigDict(json_schema_extra={"examples": [_REPLY_EXAMPLE]}, arbitrary_types_allowed=True)

    id: str
    object: Literal["scoring"] = "scoring"
    created: int
    model: str
    scores: Rows
    token_logprobs: Rows | None
    usage: ScoreUsage
    errors: tuple[ItemError, ...] | Absent = field(default_factory=absent)
    layout: ScoreLayout | Absent = field(default_factory=absent)
    calibration: Calibration = field(default_factory=absent)
