"""Body and reply of `POST /v1/rerank`: Cohere's and Jina's in one."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.rerank.ranking import RankedText, RerankMeta, RerankUsage
from mis_server.schemas.score import Absent, absent

_EXAMPLE: dict[str, Any] = {"query": "Do cats sleep?", "documents": ["Cats sleep all day.", "It rains."], "top_n": 1}

_Count = Annotated[int, Field(ge=1, lt=1 << 31)]


class Document(BaseModel):
    """A document; fields beside its text are not read."""

    text: str


class RerankBody(BaseModel):
    """Describes the body in the OpenAPI document; `mis_core.tasks.rerank.task` checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    query: str = Field(min_length=1)
    documents: list[str | Document] = Field(min_length=1)
    model: str | None = Field(default=None, description="The served model; any other name is refused.")
    top_n: _Count | None = Field(default=None, description="How many of the best are returned; null: all.")
    return_documents: bool | None = Field(default=None, description="Return the documents with their scores.")
    max_tokens_per_doc: _Count | None = Field(
        default=None, description="Longer documents are cut, and so are those for which the context has no room."
    )
    instruction: str | None = Field(default=None, description="What documents are judged by.")
    cache_salt: str | None = Field(
        default=None, description="Requests share cached prefixes only with requests that have the same salt."
    )
    on_error: Literal["request", "item"] = Field(
        default="request",
        description="`item`: a document that cannot be scored is one of `errors`, and the rest are scored.",
    )
    max_chunks_per_doc: int | None = Field(default=None, description="No effect.")
    priority: int | None = Field(default=None, description="No effect.")
    truncation: bool | None = Field(default=None, description="No effect.")
    user: str | None = Field(default=None, description="No effect.")
    rank_fields: list[Literal["text"]] | None = Field(default=None, max_length=1, min_length=1)
    relevant_spans: None = None
    return_embeddings: Literal[False] | None = None


@dataclass(frozen=True, slots=True)
class RerankResult:
    """One document; itself only where it is asked for, since Cohere's and Jina's clients read what is there."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    index: int
    relevance_score: float
    document: RankedText | Absent = field(default_factory=absent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReply:
    """Documents, the most relevant first.

    `recipe` names what the prompts were made by: a recipe, or `custom` for `--rerank-template FILE`.
    """

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    recipe: str
    results: list[RerankResult]
    errors: tuple[ItemError, ...]
    usage: RerankUsage
    meta: RerankMeta
