"""`POST /v1/chat/completions`."""

import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from jaxtyping import Float32, Int32
from numpy import ndarray
from starlette.responses import Response

from mis_core.tasks.text.bodies import ChatBody
from mis_core.tasks.text.chat import CHAT, ChatResult, ParsedChat
from mis_core.tasks.text.writing import GeneratedChoice
from mis_core.tokenization import Tokenizer
from mis_server.answering import Answering
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.chat import (
    EXAMPLES,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatReply,
    ChatUsage,
    ChoiceLogprobs,
    ChunkChoice,
    LabelLogprob,
    TokenLogprob,
    TopLogprob,
)
from mis_server.service import ServiceOfApp, event_reply, json_reply

router = APIRouter(tags=["chat"])

_DOCUMENT = described(ChatBody, *EXAMPLES)
_EVENTS: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
_TOKEN_VALUES = 8  # a token is spelled in the time of so many numbers


@router.post("/v1/chat/completions", response_model=ChatReply, openapi_extra=_DOCUMENT, responses=_EVENTS)
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request, service: ServiceOfApp) -> Response:
    """Answer a chat, and say how probable the answer's tokens, the most probable tokens and given labels are.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    answering = await service.write(CHAT, request)
    answered, tokenizer = answering.answered, service.model.tokenizers.tokenizer
    name, created, model = f"chatcmpl-{request.state.request_id}", int(time.time()), service.settings.model_name
    if answered.parsed.options.stream:
        usage = None if answered.parsed.options.include_usage else msgspec.UNSET
        event = ChatChunk(id=name, created=created, model=model, choices=[], usage=usage)
        events = _events(answering, event, tokenizer)
        return event_reply(request, events, answered)
    values = _TOKEN_VALUES * answered.result.label_ids.size
    labels = await in_thread_if_large(values, _labels, answered.result, tokenizer)
    choices: dict[int, msgspec.Raw] = {}

    async def receive(choice: GeneratedChoice) -> None:
        values = _TOKEN_VALUES * (choice.token_ids.size + choice.top_ids.size)
        with_logprobs = answered.parsed.options.logprobs is not None
        choices[choice.index] = await in_thread_if_large(values, _encoded, choice, with_logprobs, labels, tokenizer)

    await answering.hand_over_each(receive)
    in_order = [choices[index] for index in sorted(choices)]
    reply = ChatReply(id=name, created=created, model=model, choices=in_order, usage=_usage(answering))
    return json_reply(reply, answered)


async def _events(
    answering: Answering[ParsedChat, ChatResult], event: ChatChunk, tokenizer: Tokenizer
) -> AsyncGenerator[ChatChunk]:
    """Yield of each answer first the role, then what its tokens add, then why it ends."""
    parsed, result = answering.answered.parsed, answering.answered.result
    wants_logprobs = parsed.options.logprobs is not None

    def of(piece: ChunkChoice) -> ChatChunk:
        return replace(event, choices=[piece])

    async with answering.chunks() as chunks:
        labels = _labels(result, tokenizer)
        waiting = set(range(len(parsed.sequences) or len(result.tokens)))  # for their first token
        for index in sorted(waiting):
            yield of(ChunkChoice(index, {"role": "assistant", "content": ""}))
        async for chunk in chunks:
            index, is_first = chunk.index, chunk.index in waiting
            waiting.discard(index)
            if chunk.text or wants_logprobs or is_first:
                own = chunk.token_id, chunk.logprob, chunk.top_ids, chunk.top_logprobs
                logprobs = ChoiceLogprobs([_token(tokenizer, *own)]) if wants_logprobs else None
                told = labels if is_first else msgspec.UNSET
                yield of(ChunkChoice(index, {"content": chunk.text}, logprobs=logprobs, labels=told))
            if chunk.finish_reason:
                yield of(ChunkChoice(index, {}, finish_reason=chunk.finish_reason))
        if parsed.options.include_usage:
            yield replace(event, usage=_usage(answering))


def _encoded(
    choice: GeneratedChoice, with_logprobs: bool, labels: msgspec.Raw | msgspec.UnsetType, tokenizer: Tokenizer
) -> msgspec.Raw:
    told = ChatChoice(
        index=choice.index,
        message=AnswerMessage(choice.text),
        logprobs=_logprobs(choice, tokenizer) if with_logprobs else None,
        finish_reason=choice.finish_reason,
        labels=labels,
    )
    return msgspec.Raw(msgspec.json.encode(told))


def _logprobs(choice: GeneratedChoice, tokenizer: Tokenizer) -> ChoiceLogprobs:
    rows = zip(
        choice.token_ids.tolist(), choice.token_logprobs.tolist(), choice.top_ids, choice.top_logprobs, strict=True
    )
    return ChoiceLogprobs([_token(tokenizer, *row) for row in rows])


def _token(
    tokenizer: Tokenizer,
    token: int,
    logprob: float,
    top_ids: Int32[ndarray, " top_logprobs"],
    top_logprobs: Float32[ndarray, " top_logprobs"],
) -> TokenLogprob:
    pairs = zip(top_ids.tolist(), top_logprobs.tolist(), strict=True)
    return TokenLogprob(
        *_spelled(tokenizer, token), logprob, [TopLogprob(*_spelled(tokenizer, each), value) for each, value in pairs]
    )


def _labels(result: ChatResult, tokenizer: Tokenizer) -> msgspec.Raw | msgspec.UnsetType:
    """Return the labels encoded, which are the same in all answers; nothing if there are none."""
    values = (result.label_ids, result.label_logprobs, result.label_probabilities)
    labels = [
        LabelLogprob(*_spelled(tokenizer, token), token, logprob, probability)
        for token, logprob, probability in zip(*(each.tolist() for each in values), strict=True)
    ]
    return msgspec.Raw(msgspec.json.encode(labels)) if labels else msgspec.UNSET


def _spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int]]:
    """Return the text of a token and its bytes, which may be part of a character."""
    data = tokenizer.token_bytes(token)
    return data.decode(errors="replace"), list(data)


def _usage(answering: Answering[ParsedChat, ChatResult]) -> ChatUsage:
    """Return the token counts when all is written; the prompt counts once, however many answers there are."""
    parsed, writing = answering.answered.parsed, answering.writing
    cached = writing.cached_tokens[0] if parsed.sequences else answering.answered.result.usage.cached_tokens
    return ChatUsage.of(parsed.prompt_tokens, writing.num_tokens, cached)
