"""`POST /v1/completions`."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.text.bodies import CompletionBody
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoice
from mis_core.tasks.text.completion import COMPLETE, CompletionResult, ParsedCompletion
from mis_core.tasks.text.row_logprobs import best_choices
from mis_core.tokenization import Tokenizer
from mis_server.generation import GenerationStream
from mis_server.model import OBJECT_VALUES, in_thread_if_large
from mis_server.routes.token_logprobs import Entries, Spelled, TextOffsets
from mis_server.schemas.bodies import EVENTS, described
from mis_server.schemas.chat import ChatUsage, Finish
from mis_server.schemas.completions import EXAMPLES, CompletionChoice, CompletionReply
from mis_server.service import event_reply, json_reply, service_of

router = APIRouter(tags=["completions"])

_BODY = described(CompletionBody, *EXAMPLES)


@router.post("/v1/completions", response_model=CompletionReply, openapi_extra=_BODY, responses=EVENTS)
@router.post("/completions", include_in_schema=False)
async def complete(request: Request) -> Response:
    """Write what comes after each prompt, and say how probable its tokens and the prompt's own are.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    stream = await service.generate(COMPLETE, request)
    parsed, tokenizer = stream.answered.parsed, service.model.tokenizers.tokenizer
    usage = None if parsed.options.include_usage else msgspec.UNSET
    reply = CompletionReply(**service.head("cmpl", request), choices=[], usage=usage)
    if parsed.options.stream:
        return event_reply(request, _events(stream, reply, tokenizer), stream.answered)
    choices = await _choices(stream, tokenizer)
    return json_reply(replace(reply, choices=choices, usage=_usage(stream)), stream.answered)


async def _events(
    stream: GenerationStream[ParsedCompletion, CompletionResult], reply: CompletionReply, tokenizer: Tokenizer
) -> AsyncGenerator[CompletionReply]:
    """Yield an event for each prompt that is only echoed, else for each token that adds something."""
    parsed, result = stream.answered.parsed, stream.answered.result
    async with stream:
        echoes = await _echoes(parsed, result, tokenizer)
        pieces: dict[int, _Pieces] = {}  # of those that are being generated
        wants_logprobs = parsed.options.logprobs is not None
        if not parsed.sequences and not result.tokens:
            for index, (text, entries) in enumerate(echoes):
                logprobs = None if parsed.options.logprobs is None else entries.logprobs()
                yield replace(reply, choices=[CompletionChoice(index, text, logprobs, "length")])
        async for chunk in stream:
            if chunk.index not in pieces:
                pieces[chunk.index] = _Pieces(tokenizer, *echoes[chunk.index // parsed.choices])
            text, entries = pieces[chunk.index].add(chunk, wants_logprobs)
            if chunk.finish_reason:
                del pieces[chunk.index]
            if text or chunk.finish_reason or wants_logprobs:
                logprobs = entries.logprobs() if wants_logprobs else None
                yield replace(reply, choices=[CompletionChoice(chunk.index, text, logprobs, chunk.finish_reason)])
        if parsed.options.include_usage:
            yield replace(reply, usage=_usage(stream))


class _Pieces:
    """One answer in pieces, of which the first begins with the echo of its prompt."""

    def __init__(self, tokenizer: Tokenizer, text: str, entries: Entries) -> None:
        self._tokenizer = tokenizer
        self._text = text
        self._entries = entries
        self._offsets = TextOffsets(len(text))

    def add(self, chunk: GenerateChunk, wants_logprobs: bool) -> tuple[str, Entries]:
        text, self._text = self._text + chunk.text, ""
        if not wants_logprobs:
            return text, self._entries
        ids, top_ids = np.array([chunk.token_id], np.int32), chunk.top_ids[None]
        spelled = Spelled(self._tokenizer, [ids, top_ids])
        logprobs, offset = np.array([chunk.logprob], np.float32), spelled.offsets(ids, self._offsets)
        entries = Entries.of(spelled, ids, logprobs, top_ids, chunk.top_logprobs[None], offset)
        entries, self._entries = self._entries + entries, Entries()
        return text, entries


async def _choices(
    stream: GenerationStream[ParsedCompletion, CompletionResult], tokenizer: Tokenizer
) -> list[msgspec.Raw]:
    """Return the answers in order. Those to a prompt are encoded when all that are drawn from it have ended."""
    parsed, result = stream.answered.parsed, stream.answered.result
    echoes = await _echoes(parsed, result, tokenizer)
    draws = (len(parsed.sequences) or len(result.tokens)) // len(echoes)
    drawn: dict[int, list[GeneratedChoice]] = {}
    encoded: dict[int, list[msgspec.Raw]] = {}

    async def receive(choice: GeneratedChoice) -> None:
        prompt = choice.index // draws
        drawn.setdefault(prompt, []).append(choice)
        if len(drawn[prompt]) < draws:
            return
        in_order = sorted(drawn.pop(prompt), key=lambda each: each.index)
        best = best_choices(in_order, parsed.choices, lambda choice: choice.token_logprobs.mean())
        values = OBJECT_VALUES * sum(each.token_ids.size + each.top_ids.size for each in best)
        encoded[prompt] = await in_thread_if_large(values, _answers, parsed, prompt, echoes[prompt], best, tokenizer)

    await stream.hand_over_each(receive)
    if not draws:  # no answer has tokens
        return [_encoded(parsed, index, *echo, "length") for index, echo in enumerate(echoes)]
    return [choice for prompt in range(len(echoes)) for choice in encoded[prompt]]


def _answers(
    parsed: ParsedCompletion, prompt: int, echo: tuple[str, Entries], best: list[GeneratedChoice], tokenizer: Tokenizer
) -> list[msgspec.Raw]:
    """Return the answers to a prompt, encoded."""
    spelled = Spelled(tokenizer, [ids for choice in best for ids in (choice.token_ids, choice.top_ids)])
    text, entries = echo
    answers: list[msgspec.Raw] = []
    for index, choice in enumerate(best, prompt * parsed.choices):
        both = entries if parsed.options.logprobs is None else entries + _entries(choice, spelled, len(text))
        answers.append(_encoded(parsed, index, text + choice.text, both, choice.finish_reason))
    return answers


def _encoded(parsed: ParsedCompletion, index: int, text: str, entries: Entries, finish: Finish) -> msgspec.Raw:
    logprobs = None if parsed.options.logprobs is None else entries.logprobs()
    return msgspec.Raw(msgspec.json.encode(CompletionChoice(index, text, logprobs, finish)))


def _entries(choice: GeneratedChoice, spelled: Spelled, offset: int) -> Entries:
    """Return what is said of the tokens of an answer, which begins at a place of the text."""
    offsets = spelled.offsets(choice.token_ids, TextOffsets(offset))
    arrays = choice.token_ids, choice.token_logprobs, choice.top_ids, choice.top_logprobs
    return Entries.of(spelled, *arrays, offsets)


def _echoed_values(parsed: ParsedCompletion) -> int:
    return len(parsed.prompts.tokens) * (1 + parsed.options.top_tokens) if parsed.echo else 0


async def _echoes(
    parsed: ParsedCompletion, result: CompletionResult, tokenizer: Tokenizer
) -> list[tuple[str, Entries]]:
    """Return the text of each prompt and what is said of its tokens, as far as they are echoed."""
    return await in_thread_if_large(OBJECT_VALUES * _echoed_values(parsed), _all_echoes, parsed, result, tokenizer)


def _all_echoes(parsed: ParsedCompletion, result: CompletionResult, tokenizer: Tokenizer) -> list[tuple[str, Entries]]:
    count = len(parsed.prompts.lens)
    if not parsed.echo:
        return [("", Entries())] * count
    tops = [] if result.prompt is None else [result.prompt.top_ids]
    spelled = Spelled(tokenizer, [parsed.prompts.tokens, *tops])
    return [_echoed(parsed, result, spelled, prompt) for prompt in range(count)]


def _echoed(parsed: ParsedCompletion, result: CompletionResult, spelled: Spelled, prompt: int) -> tuple[str, Entries]:
    """Return the text of a prompt and what is said of its tokens."""
    begin, end = parsed.prompts.starts[prompt : prompt + 2].tolist()
    ids = parsed.prompts.tokens[begin:end]
    text = spelled.text(ids) if parsed.texts is None else parsed.texts[prompt]
    if result.prompt is None:
        return text, Entries()
    starts = parsed.text_starts
    offsets = spelled.offsets(ids, TextOffsets(0)) if starts is None else starts[begin:end]
    own = result.prompt
    tops = own.top_ids[begin:end], own.top_logprobs[begin:end]
    return text, Entries.of(spelled, ids, own.logprobs[begin:end], *tops, offsets, has_first=False)


def _usage(stream: GenerationStream[ParsedCompletion, CompletionResult]) -> ChatUsage:
    """Return the token counts when all is generated."""
    parsed, result = stream.answered.parsed, stream.answered.result
    if not parsed.sequences:
        return ChatUsage.of(result.usage.prompt_tokens, result.completion_tokens, result.usage.cached_tokens)
    cached = sum(stream.choices.cached_tokens[:: parsed.options.draws])
    return ChatUsage.of(result.usage.prompt_tokens, stream.choices.num_tokens, cached)
