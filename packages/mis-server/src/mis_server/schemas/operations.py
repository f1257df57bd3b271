"""The words of the routes for operators."""

from typing import Any

from pydantic import BaseModel


class Status(BaseModel):
    """One word."""

    status: str


class Version(BaseModel):
    """Versions of the packages."""

    version: str
    mis_core: str


class ServerInfo(BaseModel):
    """Everything about a running server that is no secret."""

    version: str
    model: str
    settings: dict[str, Any]
    engine: dict[str, str | int | float]
    statistics: dict[str, float]


class Flushed(BaseModel):
    """How many pages of the prefix cache became free."""

    freed_pages: int


class Profiling(BaseModel):
    """State of profiling, and the folder under `--profile-dir` that is written to."""

    status: str
    folder: str | None = None
