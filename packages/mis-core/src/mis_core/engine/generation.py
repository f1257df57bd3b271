"""Generations from their fields to their tokens as they come: in a thread that waits, or in an event loop."""

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mis_core.engine.loop import Listener
from mis_core.requests import GenerateRequest, NewToken
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoices
from mis_core.tasks.text.generation import parse_generation
from mis_core.tasks.text.parsed import ParsedText
from mis_core.tokenization import Tokenizer

Start = Callable[[GenerateRequest, Listener, int], Callable[[], None]]
"""Begins a sequence, and returns what ends it early; see `EngineLoop.generate`."""

_Tokens = Sequence[tuple[int, NewToken | Exception]]  # what a step adds to choices


class GenerationService:
    """Parses generations, has them generated, and ends what nobody reads any more."""

    def __init__(self, start: Start, limits: Limits, tokenizer: Callable[[], Tokenizer]) -> None:
        self._start = start
        self._limits = limits
        self._tokenizer = tokenizer

    def parse(self, fields: Mapping[str, Any]) -> tuple[ParsedText, GeneratedChoices]:
        """Validate a request, and begin its choices; raises `RequestError`."""
        tokenizer = self._tokenizer()
        parsed = parse_generation(fields, tokenizer, self._limits)
        return parsed, GeneratedChoices(tokenizer, parsed.options.stops, len(parsed.sequences))

    def generate(self, parsed: ParsedText, choices: GeneratedChoices) -> Generator[GenerateChunk]:
        """Yield what tokens add as they come; closing the iterator early frees what they hold."""
        tokens: queue.SimpleQueue[_Tokens] = queue.SimpleQueue()
        cancels = self._begin(parsed, tokens.put)
        try:
            while not choices.is_complete:
                yield from _add(choices, cancels, tokens.get())
        finally:
            for cancel in cancels:
                cancel()

    async def generate_async(self, parsed: ParsedText, choices: GeneratedChoices) -> AsyncGenerator[GenerateChunk]:
        """`generate` for asyncio."""
        tokens: asyncio.Queue[_Tokens] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(new: _Tokens) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and nobody reads any more
                loop.call_soon_threadsafe(tokens.put_nowait, new)

        cancels = self._begin(parsed, listen)
        try:
            while not choices.is_complete:
                for chunk in _add(choices, cancels, await tokens.get()):
                    yield chunk
        finally:
            for cancel in cancels:
                cancel()

    def _begin(self, parsed: ParsedText, listener: Listener) -> list[Callable[[], None]]:
        cancels: list[Callable[[], None]] = []
        try:
            for index, request in enumerate(parsed.sequences):
                cancels.append(self._start(request, listener, index))
        except BaseException:
            for cancel in cancels:
                cancel()
            raise
        return cancels


def _add(choices: GeneratedChoices, cancels: list[Callable[[], None]], tokens: _Tokens) -> Generator[GenerateChunk]:
    for index, token in tokens:
        if isinstance(token, Exception):
            raise token
        chunk = choices.add(index, token)
        if chunk is None:
            continue
        if chunk.finish_reason is not None and token.finish_reason is None:
            cancels[index]()  # a text has ended it, which the engine does not know
        yield chunk
