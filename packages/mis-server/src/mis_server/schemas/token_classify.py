"""Reply of `POST /v1/token_classify`."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict

from mis_server.schemas.score import ScoreUsage

EXAMPLES: list[Any] = [{"input": ["Ada met Grace."]}, {"input": [[32, 2543, 2270]], "use_activation": False}]

_REPLY_EXAMPLE: dict[str, Any] = {
    "id": "token-classify-5f0e1c",
    "object": "list",
    "created": 1763712000,
    "model": "Qwen3-0.6B-ner",
    "labels": ["O", "B-PER"],
    "data": [
        {
            "index": 0,
            "tokens": [
                {"id": 95250, "text": "Ada", "start": 0, "end": 3, "label": "B-PER", "probs": [0.04, 0.96]},
                {"id": 2270, "text": " met", "start": 3, "end": 7, "label": "O", "probs": [0.99, 0.01]},
            ],
        }
    ],
    "usage": {
        "prompt_tokens": 2,
        "completion_tokens": 0,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
}


@dataclass(frozen=True, slots=True)
class TokenLabel:
    """One token: where it is in its text, its most probable label, and the probabilities of all.

    `text` is what the text has from `start` to `end`, in characters; nothing of a token that the tokenizer adds. All
    three are null where token ids were sent.
    """

    id: int
    text: str | None
    start: int | None
    end: int | None
    label: str
    probs: list[float]


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """One input: its tokens."""

    index: int
    tokens: list[TokenLabel]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClassifyReply:
    """Tokens of each input, in the order of the request's inputs; `labels` are in the order of `probs`."""

    __pydantic_config__ = ConfigDict(json_schema_extra={"examples": [_REPLY_EXAMPLE]})

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    labels: list[str]
    data: list[TokenLabels]
    usage: ScoreUsage
