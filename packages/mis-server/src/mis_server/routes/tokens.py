"""`POST /tokenize` and `POST /detokenize`."""

import functools
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from mis_server.edge.admission import Place
from mis_server.routes.intake import take_in
from mis_server.schemas.tokens import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply
from mis_server.service import Service, ServiceOfApp
from mis_server.tokenizers.pool import SMALL
from mis_server.tokenizers.worker import detokenized, tokenized

router = APIRouter(tags=["tokens"])


def _body(schema: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@router.post("/tokenize", openapi_extra=_body(TokenizeBody), response_model=TokenizeReply)
async def tokenize(request: Request, service: ServiceOfApp) -> Response:
    """Return the token ids of a text.

    The header `x-request-timeout` names the seconds after which the client no longer needs an answer; it is 504 then.
    """
    settings, info = service.settings, service.client.info
    limits = settings.max_text_characters, settings.max_request_tokens, None if info is None else info.context_length
    return await _answer(request, service, tokenized, *limits)


@router.post("/detokenize", openapi_extra=_body(DetokenizeBody), response_model=DetokenizeReply)
async def detokenize(request: Request, service: ServiceOfApp) -> Response:
    """Return the text of token ids. The header `x-request-timeout` is that of `/tokenize`."""
    settings, info = service.settings, service.client.info
    limits = settings.max_text_characters, settings.max_request_tokens, None if info is None else info.vocab_size
    return await _answer(request, service, detokenized, *limits)


async def _answer(request: Request, service: Service, work: Callable[..., bytes], *limits: int | None) -> Response:
    async def reply(body: bytes, place: Place) -> bytes:
        lane = service.tokenizers.small if len(body) <= SMALL else service.tokenizers.large
        return await lane(functools.partial(work, body, service.settings.model_name, *limits), len(body))

    return Response(await take_in(request, service, reply), media_type="application/json")
