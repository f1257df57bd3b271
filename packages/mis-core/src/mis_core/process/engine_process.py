"""One life of the engine process, as the front sees it."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Sequence
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
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, ScoreRequest

STOP_S = 5.0

Reader = Callable[[NewToken], bool]
"""Takes a sequence's next token; returns whether it wants another one."""

_READ_AHEAD_BYTES = 16 * 1024  # some hundred tokens: the engine waits, instead of answers behind thousands of them
_WITHOUT_PAUSE_S = 0.002


class EngineFault(RuntimeError):
    """The engine failed on this one request; its log says why. Trying again will most likely fail, too."""


class RequestLost(EngineUnavailable):
    """The device failed, for instance out of memory, while it computed this request. The engine goes on."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Generating:
    """A sequence that is being generated."""

    reader: Reader
    ended: asyncio.Future[None]


class EngineProcess:
    """One life of the engine process."""

    def __init__(
        self, process: Process, lifeline: Lifeline, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.requests: dict[int, ScoreRequest | GenerateRequest] = {}
        self._generating: dict[int, _Generating] = {}
        self._process = process
        self._lifeline = lifeline
        self._reader = reader
        self._writer = writer

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for an answer, or for more of it."""
        return len(self.answers) + len(self._generating)

    @classmethod
    async def start(cls, command: Sequence[str]) -> "EngineProcess":
        """Start the process with one end of a socket pair; it inherits our standard error, and ends with us.

        A start that is cancelled is finished and the process ended: event loops leave half-started processes behind.
        """
        starting = asyncio.create_task(cls._start(command), name="engine start")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(EngineUnavailable):
                await (await starting).stop()
            raise

    @classmethod
    async def _start(cls, command: Sequence[str]) -> "EngineProcess":
        ours, theirs = socket.socketpair()
        lifeline = Lifeline()
        try:
            try:
                with theirs:
                    fd = theirs.fileno()
                    process = await asyncio.create_subprocess_exec(
                        *command, str(fd), pass_fds=(fd,), stdin=lifeline.theirs
                    )
            finally:
                lifeline.keep()
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_READ_AHEAD_BYTES)
        except OSError as error:
            ours.close()
            lifeline.close()
            raise EngineUnavailable(f"The engine process could not be started: {error.strerror}.") from None
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

    async def score(self, id: int, request: ScoreRequest) -> EngineOutput:
        """Send a request and wait for its answer."""
        frame = _frame_of(Score(id, request))
        self.requests[id] = request
        try:
            return await self._ask(id, frame)
        except asyncio.CancelledError:
            self._send(encode_frame(Cancel(id)))
            raise
        finally:
            del self.requests[id]

    async def generate(self, id: int, request: GenerateRequest, reader: Reader) -> None:
        """Send a sequence to be generated and wait until it has ended.

        Args:
            id: Never used before.
            request: The sequence.
            reader: Called with each token as it comes; what it raises ends the sequence and is raised here.
        """
        frame = _frame_of(Generate(id, request))
        generating = self._generating[id] = _Generating(reader, asyncio.get_running_loop().create_future())
        self.requests[id] = request
        try:
            self._send(frame)
            await self._writer.drain()
            await generating.ended
        except ConnectionError:
            raise EngineUnavailable("The engine ended.") from None
        except asyncio.CancelledError:
            self._send(encode_frame(Cancel(id)))
            raise
        finally:
            del self._generating[id], self.requests[id]

    async def operate(self, operate: Operate) -> dict[str, float]:
        """Send an operation and wait until it is done."""
        return await self._ask(operate.id, encode_frame(operate))

    async def _ask(self, id: int, frame: bytes) -> Any:
        answer = self.answers[id] = asyncio.get_running_loop().create_future()
        try:
            self._send(frame)
            await self._writer.drain()
            return await answer
        except ConnectionError:
            raise EngineUnavailable("The engine ended.") from None
        finally:
            del self.answers[id]

    def kill(self) -> None:
        """Kill the process; whoever reads from it sees the end."""
        self._process.kill()

    async def deliver_answers(self) -> None:
        """Deliver answers to the waiting callers, until the process ends.

        Raises:
            EngineUnavailable: always, when the process ends; says how it ended.
            MalformedFrame: what arrived is not an answer.
        """
        began = time.monotonic()
        while True:
            for _ in self._deliver(await self._receive()):
                # What is here already makes nothing wait: without a pause, thousands of tokens would hold up the loop.
                if time.monotonic() - began > _WITHOUT_PAUSE_S:
                    await asyncio.sleep(0)
                    began = time.monotonic()

    async def stop(self, within_s: float = STOP_S) -> None:
        """Fail what is in flight, then stop the process: politely, then by force."""
        for waiting in (*self.answers, *self._generating):
            self._fail(waiting, EngineUnavailable("The engine ended before it answered."))
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

    def _deliver(self, message: ToFront) -> Iterator[None]:
        """Deliver a message piece by piece; there may be a pause after each."""
        match message:
            case Generated():
                for number, token in message.tokens():
                    self._deliver_token(number, token)
                    yield
                return
            case Scored(id=id, output=value) | Operated(id=id, values=value):
                answer = self.answers.get(id)
                if answer is not None and not answer.done():
                    answer.set_result(value)
            case Rejected():
                self._fail(message.id, RequestError(message.code, message.message, message.param))
            case Errored(is_lost=True):
                self._fail(message.id, RequestLost("The device failed while it computed this request."))
            case Errored():
                self._fail(message.id, EngineFault("The engine failed on this request; its log says why."))
            case _:
                raise MalformedFrame(f"{type(message).__name__} after the start.")
        yield

    def _deliver_token(self, id: int, token: NewToken) -> None:
        generating = self._generating.get(id)
        if generating is None or generating.ended.done():  # cancelled meanwhile
            return
        try:
            is_read = generating.reader(token)
        except Exception as error:
            self._send(encode_frame(Cancel(id)))
            generating.ended.set_exception(error)
            return
        if token.finish_reason is None and not is_read:
            self._send(encode_frame(Cancel(id)))
        if token.finish_reason is not None or not is_read:
            generating.ended.set_result(None)

    def _fail(self, id: int, error: Exception) -> None:
        answer = self._generating[id].ended if id in self._generating else self.answers.get(id)
        if answer is not None and not answer.done():
            answer.set_exception(error)

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


def _frame_of(message: Score | Generate) -> bytes:
    try:
        return encode_frame(message)
    except MalformedFrame:
        raise RequestError("request_too_large", "The request does not fit in one message to the engine.") from None
