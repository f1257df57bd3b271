"""OpenAI's list of models."""

from typing import Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """One served model; `max_model_len` is its context length in tokens, null until the engine has started."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mis"
    max_model_len: int | None


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
