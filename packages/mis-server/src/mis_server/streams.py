"""Replies that are made while their clients read them: a task of its own makes the chunks of one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic, Self, TypeVar

from mis_server.errors import forget_frames

Chunk = TypeVar("Chunk")


class ReplyStream(Generic[Chunk]):
    """A reply that is being made: an async iterator of chunks, which ends the work when it is left.

    Enter it once, as an async context manager, and iterate inside. Iterating raises the error that ended the work.

    Attributes:
        AHEAD: Chunks that a client has not read yet, above which `room` waits.
    """

    AHEAD: ClassVar[int] = 256
    _task: asyncio.Task[None]

    def __init__(self) -> None:
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._chunks: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._has_room.set()

    @classmethod
    async def start(cls, work: Callable[[Self], Coroutine[Any, Any, None]]) -> Self:
        """Start a task that has the stream begin, then calls `put`; return when it has begun, or raise why not."""
        stream = cls()
        stream._task = asyncio.create_task(work(stream), name="reply")
        stream._task.add_done_callback(stream._end)
        try:
            await stream._begun
        except BaseException:
            stream._task.cancel()
            raise
        return stream

    def open(self) -> None:
        """Say that the reply begins: from now on, errors come in the middle of it."""
        if not self._begun.done():  # else nobody waits any more, and the task is cancelled
            self._begun.set_result(None)

    async def room(self) -> None:
        """Wait while the client has many chunks to read."""
        await self._has_room.wait()

    def put(self, chunk: Chunk) -> None:
        """Hand a chunk to the client."""
        self._chunks.put_nowait(chunk)
        if self._chunks.qsize() >= self.AHEAD:
            self._has_room.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._chunks.get()
        if chunk is None:
            raise StopAsyncIteration
        if isinstance(chunk, BaseException):
            raise chunk
        if self._chunks.qsize() < self.AHEAD:
            self._has_room.set()
        return chunk

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


class LineStream(ReplyStream[bytes]):
    """A reply of lines, each of which may be large: no further one is made ready before the last is read."""

    AHEAD = 1
