"""Answers that are generated token by token: a task of their own reads them from the engine while the client reads."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

from mis_core.tasks.path.service import Answered
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoice, GeneratedChoices
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_server.errors import forget_frames

_AHEAD = 256  # chunks that a client has not read yet, above which no further sequence is begun

ParsedType = TypeVar("ParsedType", bound=ParsedText)
Result = TypeVar("Result", bound=TextResult)


class GenerationStream(Generic[ParsedType, Result]):
    """A request whose answers are being generated: an async iterator of chunks, which ends the work when it is left.

    Enter it once, as an async context manager, and iterate inside. Iterating raises EngineUnavailable, EngineFault,
    RequestError or ClientDisconnect: why no more comes.

    Attributes:
        answered: What scores said of it.
        choices: Its answers so far.
    """

    answered: Answered[ParsedType, Result]
    choices: GeneratedChoices
    _task: asyncio.Task[None]

    def __init__(self) -> None:
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._chunks: asyncio.Queue[GenerateChunk | BaseException | None] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._has_room.set()

    @classmethod
    async def start(cls, work: Callable[[Self], Coroutine[Any, Any, None]]) -> Self:
        """Start a task that calls `begin`, then `put`; return when it has begun, or raise why it has not."""
        stream = cls()
        stream._task = asyncio.create_task(work(stream), name="generation")
        stream._task.add_done_callback(stream._end)
        try:
            await stream._begun
        except BaseException:
            stream._task.cancel()
            raise
        return stream

    def begin(self, answered: Answered[ParsedType, Result], choices: GeneratedChoices) -> None:
        """Say that the answers begin: from now on, errors come in the middle of them."""
        self.answered, self.choices = answered, choices
        if not self._begun.done():  # else nobody waits any more, and the task is cancelled
            self._begun.set_result(None)

    async def room(self) -> None:
        """Wait while the client has many chunks to read."""
        await self._has_room.wait()

    def put(self, chunk: GenerateChunk) -> None:
        """Hand a chunk to the client."""
        self._chunks.put_nowait(chunk)
        if self._chunks.qsize() >= _AHEAD:
            self._has_room.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerateChunk:
        chunk = await self._chunks.get()
        if chunk is None:
            raise StopAsyncIteration
        if isinstance(chunk, BaseException):
            raise chunk
        if self._chunks.qsize() < _AHEAD:
            self._has_room.set()
        return chunk

    async def hand_over_each(self, receive: Callable[[GeneratedChoice], Awaitable[None]]) -> None:
        """Hand over each answer as soon as it has ended, so that nothing of it is kept here; enters and iterates."""
        async with self:
            async for chunk in self:
                if chunk.finish_reason is not None:
                    await receive(self.choices.pop(chunk.index))

    def _end(self, task: asyncio.Task[None]) -> None:
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:  # left with the task, it would hold the frames that hold the task
            forget_frames(cancelled)
            error = asyncio.CancelledError()
        if self._begun.done():
            self._chunks.put_nowait(error)
        elif error is not None:
            self._begun.set_exception(error)
