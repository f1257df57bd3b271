"""Replies of the routes for operators and administrators, and of `/v1/models`, as OpenAI has them."""

from typing import Any, Literal

from pydantic import BaseModel


class Status(BaseModel):
    """A status in one word."""

    status: str


class Version(BaseModel):
    """Versions of the packages."""

    version: str
    mis_core: str


class ServerInfo(BaseModel):
    """Everything about a running server, except secrets."""

    version: str
    model: str
    settings: dict[str, Any]
    engine: dict[str, str | int | float]
    statistics: dict[str, float]


class Flushed(BaseModel):
    """How many pages of the prefix cache were freed."""

    freed_pages: int


class Profiling(BaseModel):
    """Whether a profile is being recorded, and its folder under `--profile-dir`."""

    status: str
    folder: str | None = None


class ModelCard(BaseModel):
    """A served model; `max_model_len` is its context length in tokens, null until the engine is ready."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mis"
    max_model_len: int | None


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
