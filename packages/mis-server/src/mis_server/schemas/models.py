"""Replies of `/v1/models`, as OpenAI has them."""

from typing import Literal

from pydantic import BaseModel


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
