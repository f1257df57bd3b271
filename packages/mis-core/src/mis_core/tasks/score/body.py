"""The body of a score."""

from typing import Annotated, Any

from msgspec import Meta

from mis_core.config import Algorithm, Mask
from mis_core.tasks.fields.body import (
    TYPE,
    AddSpecialTokens,
    Body,
    CacheSalt,
    Calibration,
    ModelName,
    Text,
    TokenId,
    Tokens,
    about,
)
from mis_core.tasks.fields.item_errors import OnError

_AnyTexts = Annotated[list[str], Meta(min_length=1)]
_Temperature = Annotated[float, Meta(gt=0)]


class ScoreBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /v1/score`. Query, items and labels have readers of their own: they depend on each other."""

    query: Annotated[
        Any,
        about(
            "What all items share. It must not be empty.", noun="a text, or a list of token ids", schemas=(Text, Tokens)
        ),
    ]
    items: Annotated[
        Any,
        about(
            "What is scored after the query: texts or token ids, as the query is. At least one; an item may be empty. "
            "A single text is one item.",
            noun="a list of texts, or of lists of token ids",
            schemas=(str, _AnyTexts, Annotated[list[list[TokenId]], Meta(min_length=1)]),
        ),
    ]
    label_token_ids: Annotated[
        Any,
        about(
            "Tokens whose probability after `query + item` is returned; a token may occur twice. Required unless "
            "`labels` is given.",
            noun="a list of token ids, or one such list per item",
            schemas=(Tokens, Annotated[list[Tokens], Meta(min_length=1)], None),
        ),
    ] = None
    labels: Annotated[
        Any,
        about(
            "The labels as texts of one or more tokens each; a score is the probability of all tokens of its label. A "
            "leading space often matters.",
            noun="a list of texts",
            schemas=(_AnyTexts, None),
        ),
    ] = None
    apply_softmax: Annotated[
        bool,
        about(
            "Return a softmax over the labels instead of full-vocabulary probabilities.",
            wrong=TYPE,
        ),
    ] = False
    item_first: Annotated[bool, about("Put each item before the query instead of after it.", wrong=TYPE)] = False
    return_token_logprobs: Annotated[
        bool,
        about("Also return full-vocabulary natural log-probabilities.", wrong=TYPE),
    ] = False
    return_layout: Annotated[bool, about("Also return how the request was laid out in steps.", wrong=TYPE)] = False
    add_special_tokens: AddSpecialTokens = True
    cache_salt: CacheSalt = None
    model: ModelName = None
    temperature: Annotated[
        _Temperature,
        about("Divides the label log-probabilities. Values other than 1 need `apply_softmax`."),
    ] = 1.0
    on_error: OnError = "request"
    calibration: Calibration = None


class LaidOutScoreBody(ScoreBody, frozen=True, kw_only=True):
    """Fields of a request that may choose its layout; null keeps what the engine was started with."""

    scoring_algorithm: Annotated[Algorithm | None, about("How items are laid out in steps.")] = None
    mask_impl: Annotated[Mask | None, about("How the mask is made; `dense` makes an array of it.")] = None
    multi_item_scoring_chunk_size: Annotated[
        Annotated[int, Meta(ge=0)] | None, about("Number of items laid out together. 0 means as many as fit.")
    ] = None
