"""Reply of `POST /v1/classify`, as vLLM has them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict

from mis_server.schemas.score import Calibration, ScoreUsage, absent

EXAMPLES: list[Any] = [{"input": ["A cat sleeps.", "Rain."]}, {"input": [[3872, 432, 911]], "use_activation": False}]

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


@dataclass(frozen=True, slots=True)
class Classification:
    """One input: its most probable label, and the probabilities of all, in the order of the head's rows."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyReply:
    """Classes in the order of the request's inputs.

    `calibration`, only where one is loaded, is the digest of what the probabilities are calibrated by, or null.
    """

    __pydantic_config__ = ConfigDict(json_schema_extra={"examples": [_REPLY_EXAMPLE]}, arbitrary_types_allowed=True)

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classification]
    usage: ScoreUsage
    calibration: Calibration = field(default_factory=absent)
