"""Generations from their fields to their tokens, told as they come: in a thread that waits, or to an event loop."""

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mis_core.engine.loop import Listener
from mis_core.requests import GenerateRequest, NewToken
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.generation import ParsedGeneration, parse_generation
from mis_core.tasks.text.writing import GenerateChunk, Writing
from mis_core.tokenization import Tokenizer

Start = Callable[[GenerateRequest, Listener, int], Callable[[], None]]
"""Begins a sequence, and returns what ends it early; see `EngineLoop.generate`."""

_Told = Sequence[tuple[int, NewToken | Exception]]  # what a step adds to choices


class Writer:
    """Parses generations, has them written, and ends what nobody reads any more."""

    def __init__(self, start: Start, limits: Limits, tokenizer: Callable[[], Tokenizer]) -> None:
        self._start = start
        self._limits = limits
        self._tokenizer = tokenizer

    def parse(self, fields: Mapping[str, Any]) -> tuple[ParsedGeneration, Writing]:
        """Validate a request, and begin its choices; raises `RequestError`."""
        tokenizer = self._tokenizer()
        parsed = parse_generation(fields, tokenizer, self._limits)
        return parsed, Writing(tokenizer, parsed.stops, len(parsed.requests))

    def write(self, parsed: ParsedGeneration, writing: Writing) -> Generator[GenerateChunk]:
        """Yield what tokens add as they come; closing the iterator early frees what they hold."""
        told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        cancels = self._begin(parsed, told.put)
        try:
            while not writing.is_complete:
                yield from _add(writing, cancels, told.get())
        finally:
            for cancel in cancels:
                cancel()

    async def write_async(self, parsed: ParsedGeneration, writing: Writing) -> AsyncGenerator[GenerateChunk]:
        """`write` for asyncio."""
        told: asyncio.Queue[_Told] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(tokens: _Told) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and nobody reads any more
                loop.call_soon_threadsafe(told.put_nowait, tokens)

        cancels = self._begin(parsed, tell)
        try:
            while not writing.is_complete:
                for chunk in _add(writing, cancels, await told.get()):
                    yield chunk
        finally:
            for cancel in cancels:
                cancel()

    def _begin(self, parsed: ParsedGeneration, listener: Listener) -> list[Callable[[], None]]:
        cancels: list[Callable[[], None]] = []
        try:
            for index, request in enumerate(parsed.requests):
                cancels.append(self._start(request, listener, index))
        except BaseException:
            for cancel in cancels:
                cancel()
            raise
        return cancels


def _add(writing: Writing, cancels: list[Callable[[], None]], told: _Told) -> Generator[GenerateChunk]:
    for index, token in told:
        if isinstance(token, Exception):
            raise token
        chunk = writing.add(index, token)
        if chunk is None:
            continue
        if chunk.finish_reason is not None and token.finish_reason is None:
            cancels[index]()  # a text has ended it, which the engine does not know
        yield chunk
