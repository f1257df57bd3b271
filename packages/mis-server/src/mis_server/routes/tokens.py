"""`POST /tokenize` and `POST /detokenize`."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from mis_core.errors import RequestError
from mis_core.token_ids import read_row
from mis_server.bodies import read_json_body
from mis_server.decoding import decode_object
from mis_server.patience import Patience
from mis_server.schemas.tokens import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply
from mis_server.service import Service, ServiceOfApp

router = APIRouter(tags=["tokens"])


def _body(schema: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@router.post("/tokenize", openapi_extra=_body(TokenizeBody))
async def tokenize(request: Request, service: ServiceOfApp) -> TokenizeReply:
    """Return the token ids of a text."""
    fields = await _fields(request, service, TokenizeBody)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise RequestError("invalid_prompt", "prompt must be a text.", "prompt")
    special, strings = (_bool(fields, name, default) for name, default in _FLAGS.items())
    tokens = await asyncio.to_thread(service.tokenizer.encode, prompt, special)
    info = service.client.info
    return TokenizeReply(
        count=len(tokens),
        max_model_len=None if info is None else info.context_length,
        tokens=tokens.tolist(),
        token_strs=service.tokenizer.spelled(tokens) if strings else None,
    )


@router.post("/detokenize", openapi_extra=_body(DetokenizeBody))
async def detokenize(request: Request, service: ServiceOfApp) -> DetokenizeReply:
    """Return the text of token ids."""
    fields = await _fields(request, service, DetokenizeBody)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise RequestError("invalid_tokens", "tokens must be a list of token ids.", "tokens")
    rows = read_row("tokens", tokens)
    info = service.client.info
    rows.check_below(service.tokenizer.vocab_size if info is None else info.vocab_size)
    return DetokenizeReply(prompt=await asyncio.to_thread(service.tokenizer.decode, rows.values))


_FLAGS = {"add_special_tokens": True, "return_token_strs": False}


async def _fields(request: Request, service: Service, schema: type[BaseModel]) -> Mapping[str, Any]:
    with Patience(request, service.settings.request_timeout, service.settings.body_timeout):
        body = await read_json_body(request)
    fields = decode_object(body)
    for name in fields:
        if name not in schema.model_fields:
            known = ", ".join(schema.model_fields)
            raise RequestError("unknown_parameter", f"Unknown field. Known fields: {known}.", name[:64])
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError("invalid_model_type", "model must be a text.", "model")
    if model and model != service.settings.model_name:
        raise RequestError("model_not_found", "This model is not served; GET /v1/models lists what is.", "model")
    return fields


def _bool(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise RequestError("invalid_prompt", f"{name} must be true or false.", name)
    return value
