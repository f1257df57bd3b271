"""System One on the wire: its routes, its replies, and its errors."""

import json
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict

from mis_core.tasks.decide.system_one.answers import FailedQuestion, SystemOneAnswer, SystemOneUsage
from mis_server.schemas.score import Absent, absent

ONE_STATE_PATHS = ("/v1/systemone", "/api/v1/systemone", "/api/alpha/decisions")
"""TypeSafe's route, and the two of OpenRouter."""

BATCH_PATH = "/v1/systemone/batch"

PATHS = (*ONE_STATE_PATHS, BATCH_PATH)
"""All routes whose errors have the form of System One."""

EXAMPLE: dict[str, Any] = {
    "model": "jev-latest",
    "state": {"subject": "Charged twice", "body": "I want my money back!"},
    "questions": {
        "refund": {"type": "noul", "instructions": "Does the customer want money back?"},
        "team": {
            "type": "choice",
            "instructions": "Who takes care of it?",
            "criteria": {"billing": "invoices, refunds", "delivery": None},
        },
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross", "furious"]},
    },
}

BATCH_EXAMPLE: dict[str, Any] = {
    "model": "jev-latest",
    "states": [EXAMPLE["state"], {"subject": "Where is it?", "body": "I have waited for a week."}],
    "questions": EXAMPLE["questions"],
}
LINES_TYPE = "application/x-ndjson"
LINES: dict[int | str, Any] = {
    200: {
        "description": "A line for each state, in their order: the reply to a request of its own, or its `error`.",
        "content": {LINES_TYPE: {"schema": {"type": "string"}}},
    }
}
"""What FastAPI's `responses` needs for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemOneReply:
    """Answers by the ids of their questions."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
    x_abstained: tuple[str, ...] | Absent = field(default_factory=absent)
    x_joint: bool | Absent = field(default_factory=absent)
    x_errors: dict[str, FailedQuestion] | Absent = field(default_factory=absent)
    x_calibration: dict[str, str | None] | Absent = field(default_factory=absent)


@dataclass(frozen=True, slots=True)
class FailedState:
    """The line of a state that has no answers."""

    error: FailedQuestion

    @classmethod
    def of(cls, code: str, message: str) -> "FailedState":
        """Return the line for an error code."""
        return cls(FailedQuestion(code, message))


class BodyFault(BaseModel):
    """What is wrong with a body, and where: `loc` is a path that begins with `body`."""

    loc: list[str | int]
    msg: str
    type: str


class OtherFault(BaseModel):
    """What else is wrong."""

    error_type: str
    message: str
    code: str


class SystemOneError(BaseModel):
    """Every reply except successes."""

    detail: list[BodyFault] | OtherFault


_NOT_THE_BODY = frozenset({"task_not_supported", "invalid_http", "invalid_request_timeout", "invalid_content_encoding"})
_KINDS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_STEP = re.compile(r'\[("(?:[^"\\]|\\.)*")\]|\[(\d+)\]|([^.\[]+)')


def error_of(status: int, code: str, message: str, param: str | None) -> tuple[int, bytes]:
    """Return the status and the body of an error: what is wrong with a body is 422 and says where."""
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY) and code not in _NOT_THE_BODY:
        fault = BodyFault(loc=["body", *_steps(param or "")], msg=message, type=code)
        return HTTPStatus.UNPROCESSABLE_ENTITY, SystemOneError(detail=[fault]).model_dump_json().encode()
    kind = _KINDS.get(HTTPStatus(status), "server_error" if status >= 500 else "api_usage_error")
    detail = OtherFault(error_type=kind, message=message, code=code)
    return status, SystemOneError(detail=detail).model_dump_json().encode()


def _steps(path: str) -> list[str | int]:
    """Return the steps of a path such as `questions["my id"].criteria[3]`."""
    return [
        _unquoted(quoted) if quoted else int(number) if number else name for quoted, number, name in _STEP.findall(path)
    ]


def _unquoted(quoted: str) -> str:
    try:
        return json.loads(quoted)
    except ValueError:  # a name of the client's own that only looks like a quoted one
        return quoted
