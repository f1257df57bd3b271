"""The error envelope."""

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What was wrong, for a person (`message`) and for a program (`code`, `param`)."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """Every reply that is not a success."""

    error: ErrorDetail
