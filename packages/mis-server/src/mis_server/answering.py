"""Answers that are written token by token: a task of their own has them written while the client reads."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar

from mis_core.process.client import Reader
from mis_core.requests import GenerateRequest, NewToken
from mis_core.tasks.path.service import Answered
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_core.tasks.text.sequences import Sequences
from mis_core.tasks.text.writing import GenerateChunk, GeneratedChoice, Writing
from mis_server.errors import forget_frames

_AHEAD = 256  # chunks that a client has not read yet, above which no further sequence is begun
_AT_A_TIME = 16  # sequences of one request in the engine

ParsedType = TypeVar("ParsedType", bound=ParsedText)
Result = TypeVar("Result", bound=TextResult)


class Answering(Generic[ParsedType, Result]):
    """A request whose answers are being written.

    Attributes:
        answered: What scores said of it.
        writing: Its answers so far.
    """

    answered: Answered[ParsedType, Result]
    writing: Writing
    _task: asyncio.Task[None]

    def __init__(self) -> None:
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told: asyncio.Queue[GenerateChunk | BaseException | None] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._has_room.set()

    @classmethod
    async def start(cls, work: Callable[[Self], Coroutine[Any, Any, None]]) -> Self:
        """Start a task that calls `begin`, then `tell`; return when it has begun, or raise why it has not."""
        answering = cls()
        answering._task = asyncio.create_task(work(answering), name="answering")
        answering._task.add_done_callback(answering._end)
        try:
            await answering._begun
        except BaseException:
            answering._task.cancel()
            raise
        return answering

    def begin(self, answered: Answered[ParsedType, Result], writing: Writing) -> None:
        """Say that the answers begin: from now on, errors come in the middle of them."""
        self.answered, self.writing = answered, writing
        if not self._begun.done():  # else nobody waits any more, and the task is cancelled
            self._begun.set_result(None)

    async def room(self) -> None:
        """Wait while the client has many chunks to read."""
        await self._has_room.wait()

    def tell(self, chunk: GenerateChunk) -> None:
        """Hand a chunk to the client."""
        self._told.put_nowait(chunk)
        if self._told.qsize() >= _AHEAD:
            self._has_room.clear()

    @asynccontextmanager
    async def chunks(self) -> AsyncGenerator[AsyncGenerator[GenerateChunk]]:
        """Give a generator of what is written as it comes; leaving ends the work. Enter it once.

        The generator raises EngineUnavailable, EngineFault, RequestError or ClientDisconnect: why no more comes.
        """
        try:
            async with aclosing(self._chunks()) as chunks:
                yield chunks
        finally:
            self._task.cancel()  # not in the generator, which does nothing unless it has been asked for a chunk

    async def _chunks(self) -> AsyncGenerator[GenerateChunk]:
        while (told := await self._told.get()) is not None:
            if isinstance(told, BaseException):
                raise told
            if self._told.qsize() < _AHEAD:
                self._has_room.set()
            yield told

    async def hand_over_each(self, receive: Callable[[GeneratedChoice], Awaitable[None]]) -> None:
        """Hand over each answer as soon as it has ended, so that nothing of it is kept here; raises as `chunks`."""
        async with self.chunks() as chunks:
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    await receive(self.writing.pop(chunk.index))

    def _end(self, task: asyncio.Task[None]) -> None:
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:  # left with the task, it would hold the frames that hold the task
            forget_frames(cancelled)
            error = asyncio.CancelledError()
        if self._begun.done():
            self._told.put_nowait(error)
        elif error is not None:
            self._begun.set_exception(error)


async def write_all(
    generate: Callable[[GenerateRequest, Reader], Coroutine[Any, Any, None]],
    sequences: Sequences,
    tell: Callable[[int, NewToken], bool],
    room: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Have sequences written, some at a time, each made when its turn comes.

    If one fails, or the caller is cancelled, the others end.

    Args:
        generate: Writes one, until it has ended.
        sequences: What is written.
        tell: Called with the number of a sequence and its next token; returns whether it goes on.
        room: Waits until there is room for what another one writes.
    """
    numbered = enumerate(sequences)

    async def write() -> None:
        for index, sequence in numbered:
            await room()
            await generate(sequence, partial(tell, index))

    writing = [asyncio.create_task(write()) for _ in range(min(_AT_A_TIME, len(sequences)))]
    try:
        await asyncio.gather(*writing)
    finally:
        for each in writing:
            each.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
