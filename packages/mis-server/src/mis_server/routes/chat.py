"""`POST /v1/chat/completions`."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.scoring.request import Usage
from mis_core.tasks.chat import CHAT, ChatResult, ParsedChat
from mis_core.tasks.sampling import stopped
from mis_core.tokenization import Tokenizer
from mis_server.schemas.chat import (
    AnswerMessage,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatReply,
    ChatUsage,
    ChoiceLogprobs,
    ChunkChoice,
    Finish,
    LabelLogprob,
    TokenLogprob,
    TopLogprob,
)
from mis_server.schemas.score import PromptTokensDetails
from mis_server.service import ServiceOfApp, event_reply, in_thread_if_large, json_reply

router = APIRouter(tags=["chat"])

_DOCUMENT = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": ChatBody.model_json_schema()}}}
}
_EVENTS: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.post("/v1/chat/completions", response_model=ChatReply, openapi_extra=_DOCUMENT, responses=_EVENTS)
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request, service: ServiceOfApp) -> Response:
    """Answer a chat with one new token, and say how probable it, the most probable tokens and given labels are.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    answered = await service.handle(CHAT, request)
    parsed, result = answered.parsed, answered.result
    tokens = result.token_ids.size + result.top_ids.size + result.label_logprobs.size
    choices = await in_thread_if_large(_TOKEN_VALUES * tokens, _choices, parsed, result, service.tokenizers.tokenizer)
    name, created, model = f"chatcmpl-{request.state.request_id}", int(time.time()), service.settings.model_name
    usage = _usage(result.usage, len(choices))
    if not parsed.stream:
        return json_reply(ChatReply(id=name, created=created, model=model, choices=choices, usage=usage), answered)
    events = [ChatChunk(id=name, created=created, model=model, choices=[piece]) for piece in _pieces(choices)]
    if parsed.include_usage:
        events.append(ChatChunk(id=name, created=created, model=model, choices=[], usage=usage))
    return event_reply(events, answered)


_TOKEN_VALUES = 8  # a token is spelled in the time of so many numbers


def _choices(parsed: ParsedChat, result: ChatResult, tokenizer: Tokenizer) -> list[ChatChoice]:
    """Return the answers; they share what is the same for all."""
    top_pairs = zip(result.top_ids.tolist(), result.top_logprobs.tolist(), strict=True)
    top = [TopLogprob(*_spelled(tokenizer, token), logprob) for token, logprob in top_pairs]
    values = (result.label_ids, result.label_logprobs, result.label_probabilities)
    labels = [
        LabelLogprob(*_spelled(tokenizer, token), token, logprob, probability)
        for token, logprob, probability in zip(*(each.tolist() for each in values), strict=True)
    ]
    encoded = msgspec.Raw(msgspec.json.encode(labels)) if labels else None
    choices = []
    for index, (token, logprob) in enumerate(
        zip(result.token_ids.tolist(), result.token_logprobs.tolist(), strict=True)
    ):
        text, reason = _answer(token, tokenizer, parsed.stop)
        own = ChoiceLogprobs([TokenLogprob(*_spelled(tokenizer, token), logprob, top)]) if parsed.logprobs else None
        choices.append(ChatChoice(index, AnswerMessage(text), own, reason, encoded))
    return choices


def _answer(token: int, tokenizer: Tokenizer, stop: tuple[str, ...]) -> tuple[str, Finish]:
    """Return the text of an answer, and why it ends."""
    if token in tokenizer.end_ids:
        return "", "stop"
    text, _ = _spelled(tokenizer, token)
    before = stopped(text, stop)
    return (text, "length") if before is None else (before, "stop")


def _spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int]]:
    """Return the text of a token and its bytes, which may be part of a character."""
    data = tokenizer.token_bytes(token)
    return data.decode(errors="replace"), list(data)


def _usage(usage: Usage, completion_tokens: int) -> ChatUsage:
    total = usage.prompt_tokens + completion_tokens
    return ChatUsage(usage.prompt_tokens, completion_tokens, total, PromptTokensDetails(usage.cached_tokens))


def _pieces(choices: list[ChatChoice]) -> Iterator[ChunkChoice]:
    """Cut answers into events: of each first the role, then the token, then why it ends."""
    for choice in choices:
        yield ChunkChoice(choice.index, {"role": choice.message.role, "content": ""})
    for choice in choices:
        yield ChunkChoice(
            choice.index, {"content": choice.message.content}, logprobs=choice.logprobs, labels=choice.labels
        )
        yield ChunkChoice(choice.index, {}, finish_reason=choice.finish_reason)
