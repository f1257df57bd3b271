"""Reply of `POST /v1/decisions`."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict

from mis_core.tasks.decide.answers import Answer, DecisionUsage
from mis_server.schemas.score import Absent, absent

_QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "refund", "instructions": "The customer wants money back."},
    {
        "type": "choice",
        "instructions": "What is it about?",
        "choices": [{"value": "billing"}, {"value": "delivery", "description": "late or lost parcels"}],
    },
    {"type": "score", "instructions": "How angry?", "levels": [{"label": "calm"}, {"label": "cross"}]},
]
EXAMPLE: dict[str, Any] = {"input": "Where is my parcel? I want my money back!", "questions": _QUESTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReply:
    """Answers in the order of the questions.

    `calibration`, only where one is loaded, has for each answer the digest of what it is calibrated by, or null.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    id: str
    object: Literal["decisions"] = "decisions"
    created: int
    model: str
    answers: tuple[Answer, ...]
    usage: DecisionUsage
    calibration: tuple[str | None, ...] | Absent = field(default_factory=absent)
