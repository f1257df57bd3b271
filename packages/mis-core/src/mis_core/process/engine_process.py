"""One life of the engine process, as the front sees it."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from typing import Any

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, ModelError, RequestError
from mis_core.process.lifeline import Lifeline
from mis_core.process.wire import (
    HEADER_BYTES,
    Cancel,
    Configure,
    Errored,
    Failed,
    Generate,
    Generated,
    MalformedFrame,
    Operate,
    Operated,
    Ready,
    Rejected,
    Score,
    Scored,
    Shutdown,
    ToFront,
    decode_for_front,
    encode_frame,
    payload_size,
)
from mis_core.requests import GenerateRequest, NewToken, ScoreRequest

STOP_S = 5.0

Reader = Callable[[NewToken], bool]
"""Takes a sequence's next token; returns whether it wants another one."""

_READ_AHEAD_BYTES = 16 * 1024  # some hundred tokens: the engine waits, instead of answers behind thousands of them
_WITHOUT_PAUSE_S = 0.002


class EngineFault(RuntimeError):
    """The engine failed on this one request; its log says why. Trying again will most likely fail, too."""


class RequestLost(EngineUnavailable):
    """The device failed, for instance out of memory, while it computed this request. The engine goes on."""


@dataclasses.dataclass(slots=True, eq=False)
class _Waiting:
    """Somebody waits for an answer: to an operation, or to a request; one that generates has a reader."""

    answer: asyncio.Future[Any]
    request: ScoreRequest | GenerateRequest | None = None
    reader: Reader | None = None


class EngineProcess:
    """One life of the engine process."""

    def __init__(
        self, process: Process, lifeline: Lifeline, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._resumed = 0.0  # when other work of the event loop last had a turn
        self._process = process
        self._lifeline = lifeline
        self._reader = reader
        self._writer = writer

    @property
    def in_flight(self) -> int:
        """Number of messages that wait for an answer, or for more of it."""
        return len(self._waiting)

    @property
    def requests(self) -> list[ScoreRequest | GenerateRequest]:
        """The requests among them."""
        return [each.request for each in self._waiting.values() if each.request is not None]

    @classmethod
    async def start(cls, command: Sequence[str]) -> "EngineProcess":
        """Start the process with one end of a socket pair; it inherits our standard error, and ends with us."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_READ_AHEAD_BYTES)
            try:
                fd = theirs.fileno()
                process, lifeline = await Lifeline.start(
                    lambda stdin: asyncio.create_subprocess_exec(*command, str(fd), pass_fds=(fd,), stdin=stdin)
                )
            except BaseException as error:
                writer.close()
                if isinstance(error, OSError):
                    message = f"The engine process could not be started: {error.strerror}."
                    raise EngineUnavailable(message) from None
                raise
        return cls(process, lifeline, reader, writer)

    async def configure(self, config: EngineConfig) -> Ready:
        """Send the configuration and wait until the model is loaded.

        Raises:
            ModelError: the model or an option cannot be served.
            EngineUnavailable: the process failed or ended.
            MalformedFrame: the reply is not an answer to this.
        """
        level = logging.getLevelName(logging.getLogger("mis_core").getEffectiveLevel())
        self._writer.write(encode_frame(Configure(dataclasses.asdict(config), level)))
        match await self._receive():
            case Ready() as info:
                return info
            case Failed(message=message, fault=False):
                raise ModelError(message)
            case Failed(message=message):
                raise EngineUnavailable(message)
            case message:
                raise MalformedFrame(f"{type(message).__name__} before the start.")

    async def compute(self, message: Score | Generate, reader: Reader | None = None) -> Any:
        """Send a request and wait for what a `Score` gives, or until a sequence has ended.

        Args:
            message: The request, with an id that was never used before.
            reader: Of a sequence. What it raises ends the sequence and is raised here.
        """
        try:
            frame = encode_frame(message)
        except MalformedFrame:
            raise RequestError("request_too_large", "The request does not fit in one message to the engine.") from None
        try:
            return await self._ask(message.id, frame, message.request, reader)
        except asyncio.CancelledError:
            self._send(encode_frame(Cancel(message.id)))
            raise

    async def operate(self, operate: Operate) -> dict[str, float]:
        """Send an operation and wait until it is done."""
        return await self._ask(operate.id, encode_frame(operate))

    async def _ask(
        self,
        id: int,
        frame: bytes,
        request: ScoreRequest | GenerateRequest | None = None,
        reader: Reader | None = None,
    ) -> Any:
        waiting = self._waiting[id] = _Waiting(asyncio.get_running_loop().create_future(), request, reader)
        try:
            self._send(frame)
            await self._writer.drain()
            return await waiting.answer
        except ConnectionError:
            raise EngineUnavailable("The engine ended.") from None
        finally:
            del self._waiting[id]

    def kill(self) -> None:
        """Kill the process; whoever reads from it sees the end."""
        self._process.kill()

    async def deliver_answers(self) -> None:
        """Deliver answers to the waiting callers, until the process ends.

        Raises:
            EngineUnavailable: always, when the process ends; says how it ended.
            MalformedFrame: what arrived is not an answer.
        """
        while True:
            await self._deliver(await self._receive())

    async def stop(self, within_s: float = STOP_S) -> None:
        """Fail what is in flight, then stop the process: politely, then by force."""
        for number in self._waiting:
            self._answer(number, EngineUnavailable("The engine ended before it answered."))
        self._send(encode_frame(Shutdown()))
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancellation, and supervision would go on.
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._process.returncode is None:  # cancelled once more
                self._process.kill()
            self._lifeline.close()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _deliver(self, message: ToFront) -> None:
        match message:
            case Generated():
                for number, token in message.tokens():
                    self._deliver_token(number, token)
                    await self._pause()
            case Scored(id=id, output=value) | Operated(id=id, values=value):
                self._answer(id, value)
            case Rejected():
                self._answer(message.id, RequestError(message.code, message.message, message.param))
            case Errored(is_lost=True):
                self._answer(message.id, RequestLost("The device failed while it computed this request."))
            case Errored():
                self._answer(message.id, EngineFault("The engine failed on this request; its log says why."))
            case _:
                raise MalformedFrame(f"{type(message).__name__} after the start.")
        await self._pause()

    async def _pause(self) -> None:
        """Let others have a turn: what has arrived makes nothing wait, and thousands of tokens would hold them up."""
        if time.monotonic() - self._resumed > _WITHOUT_PAUSE_S:
            await asyncio.sleep(0)
            self._resumed = time.monotonic()

    def _deliver_token(self, id: int, token: NewToken) -> None:
        waiting = self._waiting.get(id)
        if waiting is None or waiting.reader is None or waiting.answer.done():  # cancelled meanwhile
            return
        reason: Exception | None = None
        try:
            if waiting.reader(token) and token.finish_reason is None:
                return
        except Exception as error:
            reason = error
        if token.finish_reason is None:
            self._send(encode_frame(Cancel(id)))
        self._answer(id, reason)

    def _answer(self, id: int, answer: Any) -> None:
        """Return an answer to who waits for it, or raise it there if it is an error."""
        waiting = self._waiting.get(id)
        if waiting is None or waiting.answer.done():
            return
        if isinstance(answer, Exception):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)

    def _send(self, frame: bytes) -> None:
        if not self._writer.is_closing():  # else nobody reads it, and uvloop refuses to write it
            self._writer.write(frame)

    async def _receive(self) -> ToFront:
        try:
            header = await self._reader.readexactly(HEADER_BYTES)
            return decode_for_front(await self._reader.readexactly(payload_size(header)))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EngineUnavailable(f"The engine process ended {await self._how_it_ended()}.") from None

    async def _how_it_ended(self) -> str:
        try:
            async with asyncio.timeout(STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            return "the conversation"
        return f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
