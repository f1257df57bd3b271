"""The body of a rerank: Cohere's and Jina's in one."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mis_core.tasks.fields.body import (
    NO_EFFECT,
    TYPE,
    Body,
    CacheSalt,
    Calibration,
    Count,
    ModelName,
    OnlyText,
    about,
    optional,
    refused,
)
from mis_core.tasks.fields.item_errors import OnError


class Document(msgspec.Struct, frozen=True):
    """A document; fields beside its text are not read."""

    text: str


class RerankBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /v1/rerank`, or keyword arguments of the same names."""

    query: Annotated[
        str,
        Meta(min_length=1),
        about("The query that documents are ranked for.", wrong=TYPE, empty="empty_query"),
    ]
    documents: Annotated[
        list[Any],
        Meta(min_length=1),
        about(
            "Texts, or objects with `text`.",
            each=str | Document,
            noun="a list of texts, or of objects with text",
            empty="empty_documents",
        ),
    ]
    model: ModelName = None
    on_error: OnError = "request"
    instruction: Annotated[
        str | None, about("How to judge documents; replaces the recipe's own instruction.", wrong=TYPE)
    ] = None
    top_n: Annotated[
        Count | None,
        about("Number of best documents to return, all by default. It may exceed the number of documents."),
    ] = None
    max_tokens_per_doc: Annotated[
        Count | None,
        about("Truncate documents to this many tokens. Documents that exceed the context are always truncated."),
    ] = None
    return_documents: Annotated[bool, optional("Return each document with its score.")] = False
    cache_salt: CacheSalt = None
    calibration: Calibration = None
    max_chunks_per_doc: Annotated[int | None, NO_EFFECT] = None
    priority: Annotated[int | None, NO_EFFECT] = None
    truncation: Annotated[bool | None, NO_EFFECT] = None
    user: Annotated[str | None, NO_EFFECT] = None
    rank_fields: Annotated[OnlyText | None, refused('["text"]')] = None
    relevant_spans: Annotated[None, refused()] = None
    return_embeddings: Annotated[Literal[False] | None, refused("false")] = None
