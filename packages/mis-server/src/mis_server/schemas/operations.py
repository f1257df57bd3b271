"""Replies of the routes for operators and administrators, and of `/v1/models`, as OpenAI has them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema


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


class FlatServerInfo(BaseModel):
    """What SGLang's clients read: every setting except secrets, what was loaded, and the engine's counts."""

    model_config = ConfigDict(extra="allow")

    model_path: str
    tokenizer_path: str
    served_model_name: str
    version: str
    internal_states: list[dict[str, float]]


class ModelInfo(BaseModel):
    """The served model, as SGLang describes it; lengths are null until the engine is ready.

    `is_generation` is whether it is a language model.
    """

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: bool
    tasks: list[str]
    context_length: int | None
    vocab_size: int | None
    preferred_sampling_params: None = None
    has_image_understanding: bool = False
    has_audio_understanding: bool = False


class Load(BaseModel):
    """What is under way: `server_load` counts requests, as vLLM does, and some of them wait to enter the engine.

    Slots for recurrent states are those that the engine last reported, seconds ago; a model without recurrent layers
    has none.
    """

    server_load: int
    requests_waiting: int
    tokens_under_way: int
    states_used: int
    states_free: int


class Flushed(BaseModel):
    """How many pages of the prefix cache were freed."""

    freed_pages: int


class Profiling(BaseModel):
    """A profile is being recorded, in a folder under `--profile-dir`."""

    status: str
    folder: str


class PartOfModel(BaseModel):
    """The language model, a trained decision head, or an adapter that is merged into the weights.

    `sha256` of a base is that of its settings, and of name, size, both ends and blocks in between of its files of
    weights; of the others it is that of all bytes of their files.
    """

    kind: Literal["base", "head", "adapter"]
    name: str
    sha256: str


class ModelCard(BaseModel):
    """A served model: `root` is the model as it was given, `tasks` what it can be asked for.

    `max_model_len` is its context length in tokens, null until the engine is ready. `recipe` is what `rerank` reads by;
    a model without that task has none. `parts` are what it is made of, none until the engine is ready.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mis"
    root: str
    parent: None = None
    max_model_len: int | None
    tasks: list[str]
    recipe: str | SkipJsonSchema[None] = Field(default=None, exclude_if=lambda recipe: recipe is None)
    parts: list[PartOfModel]


class DescribedModel(BaseModel):
    """A name of the served model, as System One's clients read it; its date is that of the checkpoint's settings."""

    name: str
    description: str
    release_date: str


class ModelList(BaseModel):
    """Names of the served model, as OpenAI has them; `models` has those that System One takes, as TypeSafe has them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    models: list[DescribedModel]
