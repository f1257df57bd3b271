"""`POST /v1/chat/completions`."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec
from fastapi import APIRouter, Request
from jaxtyping import Float32, Int32
from numpy import ndarray
from starlette.responses import Response

from mis_core.tasks.text.bodies import ChatBody
from mis_core.tasks.text.chat import CHAT, ChatResult, ParsedChat
from mis_core.tasks.text.choices import GeneratedChoice
from mis_core.tokenization import Tokenizer
from mis_server.generation import GenerationStream
from mis_server.model import OBJECT_VALUES, in_thread_if_large
from mis_server.schemas.bodies import EVENTS, described
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
from mis_server.service import event_reply, json_reply, service_of

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions", response_model=ChatReply, openapi_extra=described(ChatBody, *EXAMPLES), responses=EVENTS
)
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request) -> Response:
    """Answer a chat, and say how probable the answer's tokens, the most probable tokens and given labels are.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    stream = await service.generate(CHAT, request)
    answered, tokenizer = stream.answered, service.model.tokenizers.tokenizer
    head = service.head("chatcmpl", request)
    if answered.parsed.options.stream:
        usage = None if answered.parsed.options.include_usage else msgspec.UNSET
        event = ChatChunk(**head, choices=[], usage=usage)
        return event_reply(request, _events(stream, event, tokenizer), answered)
    values = OBJECT_VALUES * answered.result.label_ids.size
    labels = await in_thread_if_large(values, _labels, answered.result, tokenizer)
    choices: dict[int, msgspec.Raw] = {}

    async def receive(choice: GeneratedChoice) -> None:
        values = OBJECT_VALUES * (choice.token_ids.size + choice.top_ids.size)
        with_logprobs = answered.parsed.options.logprobs is not None
        choices[choice.index] = await in_thread_if_large(values, _encoded, choice, with_logprobs, labels, tokenizer)

    await stream.hand_over_each(receive)
    in_order = [choices[index] for index in sorted(choices)]
    return json_reply(ChatReply(**head, choices=in_order, usage=_usage(stream)), answered)


async def _events(
    stream: GenerationStream[ParsedChat, ChatResult], event: ChatChunk, tokenizer: Tokenizer
) -> AsyncGenerator[ChatChunk]:
    """Yield of each answer first the role, then what its tokens add, then why it ends."""
    parsed, result = stream.answered.parsed, stream.answered.result
    wants_logprobs = parsed.options.logprobs is not None

    def of(piece: ChunkChoice) -> ChatChunk:
        return replace(event, choices=[piece])

    async with stream:
        labels = _labels(result, tokenizer)
        waiting = set(range(len(parsed.sequences) or len(result.tokens)))  # for their first token
        for index in sorted(waiting):
            yield of(ChunkChoice(index, {"role": "assistant", "content": ""}))
        async for chunk in stream:
            index, is_first = chunk.index, chunk.index in waiting
            waiting.discard(index)
            if chunk.text or wants_logprobs or is_first:
                own = chunk.token_id, chunk.logprob, chunk.top_ids, chunk.top_logprobs
                logprobs = ChoiceLogprobs([_token(tokenizer, *own)]) if wants_logprobs else None
                first = labels if is_first else msgspec.UNSET
                yield of(ChunkChoice(index, {"content": chunk.text}, logprobs=logprobs, labels=first))
            if chunk.finish_reason:
                yield of(ChunkChoice(index, {}, finish_reason=chunk.finish_reason))
        if parsed.options.include_usage:
            yield replace(event, usage=_usage(stream))


def _encoded(
    choice: GeneratedChoice, with_logprobs: bool, labels: msgspec.Raw | msgspec.UnsetType, tokenizer: Tokenizer
) -> msgspec.Raw:
    answer = ChatChoice(
        index=choice.index,
        message=AnswerMessage(choice.text),
        logprobs=_logprobs(choice, tokenizer) if with_logprobs else None,
        finish_reason=choice.finish_reason,
        labels=labels,
    )
    return msgspec.Raw(msgspec.json.encode(answer))


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


def _usage(stream: GenerationStream[ParsedChat, ChatResult]) -> ChatUsage:
    """Return the token counts when all is generated; the prompt counts once, however many answers there are."""
    parsed, choices = stream.answered.parsed, stream.choices
    cached = choices.cached_tokens[0] if parsed.sequences else stream.answered.result.usage.cached_tokens
    return ChatUsage.of(parsed.prompt_tokens, choices.num_tokens, cached)
