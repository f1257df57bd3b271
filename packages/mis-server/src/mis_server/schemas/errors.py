"""The error envelope."""

from typing import Any

from pydantic import BaseModel, ConfigDict

_EXAMPLE: dict[str, Any] = {
    "error": {
        "message": "query is missing: a text or a list of token ids.",
        "type": "missing_parameter_error",
        "param": "query",
        "code": "missing_query",
    }
}


class ErrorDetail(BaseModel):
    """What was wrong, for people (`message`) and for programs (`code`, `param`)."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """Every reply except successes."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    error: ErrorDetail
