"""`POST /v1/completions`."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.ragged import offsets
from mis_core.tasks.complete import COMPLETE, CompletionResult, ParsedCompletion
from mis_core.tasks.sampling import stopped
from mis_core.tokenization import Tokenizer
from mis_server.routes.token_logprobs import Entries, Spelled
from mis_server.schemas.chat import ChatUsage, Finish
from mis_server.schemas.completions import CompletionBody, CompletionChoice, CompletionReply
from mis_server.schemas.score import PromptTokensDetails
from mis_server.service import ServiceOfApp, event_reply, in_thread_if_large, json_reply

router = APIRouter(tags=["completions"])

_DOCUMENT = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": CompletionBody.model_json_schema()}}}
}
_EVENTS: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
_TOKEN_VALUES = 8  # a token is spelled in the time of so many numbers


@router.post("/v1/completions", response_model=CompletionReply, openapi_extra=_DOCUMENT, responses=_EVENTS)
@router.post("/completions", include_in_schema=False)
async def complete(request: Request, service: ServiceOfApp) -> Response:
    """Answer each prompt with at most one new token, and say how probable it and the prompt's own tokens are.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    answered = await service.handle(COMPLETE, request)
    parsed, result = answered.parsed, answered.result
    tokens = len(parsed.prompts.tokens) * (1 + parsed.requests[0].top_tokens) if parsed.echo else 0
    values = _TOKEN_VALUES * (tokens + result.top_ids.size + result.token_ids.size)
    choices = await in_thread_if_large(values, _choices, parsed, result, service.tokenizers.tokenizer)
    total = result.usage.prompt_tokens + result.completion_tokens
    details = PromptTokensDetails(result.usage.cached_tokens)
    usage = ChatUsage(result.usage.prompt_tokens, result.completion_tokens, total, details)
    reply = CompletionReply(
        id=f"cmpl-{request.state.request_id}",
        created=int(time.time()),
        model=service.settings.model_name,
        choices=choices,
        usage=usage,
    )
    if not parsed.stream:
        return json_reply(reply, answered)
    events = [replace(reply, choices=[choice], usage=None) for choice in choices]
    if parsed.include_usage:
        events.append(replace(reply, choices=[]))
    return event_reply(events, answered)


def _choices(parsed: ParsedCompletion, result: CompletionResult, tokenizer: Tokenizer) -> list[CompletionChoice]:
    told = [result.token_ids, result.top_ids]
    if parsed.echo:
        told.append(parsed.prompts.tokens)
    if result.prompt is not None:
        told.append(result.prompt.top_ids)
    spelled = Spelled(tokenizer, told)
    choices = []
    for prompt in range(len(parsed.prompts.lens)):
        text, entries = _echoed(parsed, result, spelled, prompt) if parsed.echo else ("", Entries.none())
        for index in range(prompt * parsed.choices, (prompt + 1) * parsed.choices):
            written, reason = _written(result.token_ids[index], tokenizer, parsed.stop)
            logprobs = (
                None if parsed.logprobs is None else (entries + _new(result, spelled, index, len(text))).logprobs()
            )
            choices.append(CompletionChoice(index, text + written, logprobs, reason))
    return choices


def _written(tokens: np.ndarray, tokenizer: Tokenizer, stop: tuple[str, ...]) -> tuple[str, Finish]:
    """Return the text of the new token, if there is one, and why the answer ends."""
    for token in tokens.tolist():
        if token in tokenizer.end_ids:
            return "", "stop"
        text = tokenizer.token_bytes(token).decode(errors="replace")
        before = stopped(text, stop)
        return (text, "length") if before is None else (before, "stop")
    return "", "length"


def _echoed(parsed: ParsedCompletion, result: CompletionResult, spelled: Spelled, prompt: int) -> tuple[str, Entries]:
    """Return the text of a prompt and what is said of its tokens."""
    begin, end = parsed.prompts.starts[prompt : prompt + 2].tolist()
    ids = parsed.prompts.tokens[begin:end]
    text = spelled.text(ids) if parsed.texts is None else parsed.texts[prompt]
    if result.prompt is None:
        return text, Entries.none()
    counts = spelled.characters(ids)
    # Of a text, tokens spell more than it has where the tokenizer adds something: that is before it.
    places = np.maximum(offsets(counts)[:-1] - (int(counts.sum()) - len(text)), 0)
    told = result.prompt
    tops = told.top_ids[begin:end], told.top_logprobs[begin:end]
    return text, Entries.of(spelled, ids, told.logprobs[begin:end], *tops, places, has_first=False)


def _new(result: CompletionResult, spelled: Spelled, index: int, place: int) -> Entries:
    """Return what is said of an answer's new token, if there is one."""
    ids, logprobs = result.token_ids[index], result.token_logprobs[index]
    places = np.full(len(ids), place)
    return Entries.of(spelled, ids, logprobs, result.top_ids[index], result.top_logprobs[index], places)
