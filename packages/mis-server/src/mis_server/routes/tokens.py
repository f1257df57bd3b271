"""`POST /tokenize` and `POST /detokenize`."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tokenization import Tokenizer
from mis_server.schemas.bodies import described
from mis_server.schemas.tokens import DetokenizeReply, TokenizeReply
from mis_server.service import HttpService, service_of
from mis_server.tokenizers import tokens as work
from mis_server.tokenizers.pool import SMALL

Result = TypeVar("Result")

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=described(work.TokenizeBody, {"prompt": " yes"}), response_model=TokenizeReply)
async def tokenize(request: Request) -> Response:
    """Return the token ids of a text.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    info = service.model.client.info
    tokens = await _do(request, service, work.tokenize)
    return _json(
        TokenizeReply(
            count=tokens.count,
            max_model_len=msgspec.UNSET if info is None else info.context_length,
            tokens=msgspec.Raw(tokens.ids),
            token_strs=None if tokens.strings is None else msgspec.Raw(tokens.strings),
        )
    )


@router.post(
    "/detokenize", openapi_extra=described(work.DetokenizeBody, {"tokens": [9834]}), response_model=DetokenizeReply
)
async def detokenize(request: Request) -> Response:
    """Return the text of token ids. The header `x-request-timeout` is that of `/tokenize`."""
    service = service_of(request)
    info = service.model.client.info
    text = await _do(request, service, work.detokenize, None if info is None else info.vocab_size)
    return _json(DetokenizeReply(msgspec.Raw(text)))


async def _do(request: Request, service: HttpService, function: Callable[..., Result], *more: int | None) -> Result:
    settings = service.settings
    limits = settings.max_text_characters, settings.max_request_tokens

    async with service.admitted(request) as (body, _):
        job: Callable[[Tokenizer], Result] = partial(function, body, settings.model_names, *limits, *more)
        lane = service.model.tokenizers.small if len(body) <= SMALL else service.model.tokenizers.large
        return await lane(job, len(body))


def _json(reply: TokenizeReply | DetokenizeReply) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
