"""Generations from their fields to their tokens as they come: in a thread that waits, or in an event loop."""

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from mis_core.engine.loop import Listener
from mis_core.requests import GenerateRequest, NewToken
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoices
from mis_core.tasks.text.generation import GenerateResult, finish_generation, parse_generation
from mis_core.tasks.text.parsed import ParsedText
from mis_core.tokenization import Tokenizer

Start = Callable[[GenerateRequest, Listener, int], Callable[[], None]]
"""Begins a sequence, and returns what ends it early; see `EngineLoop.generate`."""

_Tokens = Sequence[tuple[int, NewToken | Exception]]  # what a step adds to choices
_Cancels = list[Callable[[], None]]  # what ends each choice early


class GenerationService:
    """Parses generations, has them generated, and ends what nobody reads any more."""

    def __init__(self, start: Start, limits: Limits, tokenizer: Callable[[], Tokenizer]) -> None:
        self._start = start
        self._limits = limits
        self._tokenizer = tokenizer

    def generate(self, /, **fields: Any) -> GenerateResult:
        """Return what comes after a prompt; raises `RequestError`."""
        parsed, choices = self._parse(fields)
        for _ in self._chunks(parsed, choices):
            pass
        return finish_generation(parsed, choices)

    async def generate_async(self, /, **fields: Any) -> GenerateResult:
        """`generate` for asyncio."""
        parsed, choices = await asyncio.to_thread(self._parse, fields)
        async for _ in self._chunks_async(parsed, choices):
            pass
        return finish_generation(parsed, choices)

    def stream(self, /, **fields: Any) -> Generator[GenerateChunk]:
        """Yield what tokens add as they come; closing the iterator early frees what they hold.

        Raises `RequestError` before that.
        """
        return self._chunks(*self._parse(fields))

    async def stream_async(self, /, **fields: Any) -> AsyncGenerator[GenerateChunk]:
        """`stream` for asyncio; fields are parsed when the first chunk is asked for."""
        async with aclosing(self._chunks_async(*await asyncio.to_thread(self._parse, fields))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _parse(self, fields: Mapping[str, Any]) -> tuple[ParsedText, GeneratedChoices]:
        tokenizer = self._tokenizer()
        parsed = parse_generation(fields, tokenizer, self._limits)
        return parsed, GeneratedChoices(tokenizer, parsed.options.stops, len(parsed.sequences))

    def _chunks(self, parsed: ParsedText, choices: GeneratedChoices) -> Generator[GenerateChunk]:
        tokens: queue.SimpleQueue[_Tokens] = queue.SimpleQueue()
        with self._begun(parsed, tokens.put) as cancels:
            while not choices.is_complete:
                yield from _add(choices, cancels, tokens.get())

    async def _chunks_async(self, parsed: ParsedText, choices: GeneratedChoices) -> AsyncGenerator[GenerateChunk]:
        tokens: asyncio.Queue[_Tokens] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(new: _Tokens) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and nobody reads any more
                loop.call_soon_threadsafe(tokens.put_nowait, new)

        with self._begun(parsed, listen) as cancels:
            while not choices.is_complete:
                for chunk in _add(choices, cancels, await tokens.get()):
                    yield chunk

    @contextmanager
    def _begun(self, parsed: ParsedText, listener: Listener) -> Iterator[_Cancels]:
        """Have the choices generated as long as the context is open."""
        cancels: _Cancels = []
        try:
            for index, request in enumerate(parsed.sequences):
                cancels.append(self._start(request, listener, index))
            yield cancels
        finally:
            for cancel in cancels:
                cancel()


def _add(choices: GeneratedChoices, cancels: _Cancels, tokens: _Tokens) -> Generator[GenerateChunk]:
    for index, token in tokens:
        if isinstance(token, Exception):
            raise token
        chunk = choices.add(index, token)
        if chunk is None:
            continue
        if chunk.finish_reason is not None and token.finish_reason is None:
            cancels[index]()  # a text has ended it, which the engine does not know
        yield chunk
