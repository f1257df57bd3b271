"""The front's side of the engine: starts its process, sends it requests, and restarts it when it ends.

Requests are multiplexed over one socket: any number may wait, each in its own coroutine. Knows neither
HTTP nor JAX; `wire` defines the messages.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, MisError, ModelError, RequestError
from mis_core.process.quarantine import Quarantine
from mis_core.process.wire import (
    HEADER_BYTES,
    Cancel,
    Configure,
    Errored,
    Failed,
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
from mis_core.scoring.request import LabelLogits, ScoreRequest

logger = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-m", "mis_core.process.main")

_FIRST_BACKOFF_S = 0.5
_LAST_BACKOFF_S = 30.0
_STABLE_S = 60.0  # an engine that lived this long failed for a new reason: back to the shortest wait
_STOP_S = 5.0
_SILENCE_S = 30.0  # the process answers questions about itself within milliseconds, whatever its device does
_READ_AHEAD_BYTES = 1024 * 1024


class EngineFault(RuntimeError):
    """The engine failed on this one request; its log says why. Trying again will most likely fail, too."""


class RequestLost(EngineUnavailable):
    """The device failed, for instance out of memory, while it computed this request. The engine goes on."""


class EngineClient:
    """An engine process, kept alive. Use it as an async context manager, within one event loop.

    Entering starts the process and returns at once; `wait_ready` waits for the model.
    """

    def __init__(self, config: EngineConfig, *, command: Sequence[str] = ENGINE_COMMAND) -> None:
        """Prepare; nothing starts yet.

        Args:
            config: Sent to the engine process.
            command: Starts the engine process; the number of a socket to inherit is appended.
        """
        self._config = config
        self._command = tuple(command)
        self._process: _EngineProcess | None = None
        self._info: Ready | None = None
        self._ids = itertools.count(1)
        self._quarantine = Quarantine()
        self._starts = 0
        self._stop_s = _STOP_S

    async def __aenter__(self) -> "EngineClient":
        self._first_ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._supervision = asyncio.create_task(self._supervise(), name="engine supervision")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def ready(self) -> bool:
        """Whether the engine can answer now."""
        return self._process is not None

    @property
    def info(self) -> Ready | None:
        """What the engine said about its model when it was last ready; None before it was ready for the first time."""
        return self._info

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for an answer."""
        return len(self._process.answers) if self._process is not None else 0

    @property
    def restarts(self) -> int:
        """How often the engine process was restarted."""
        return max(self._starts - 1, 0)

    async def wait_ready(self) -> Ready:
        """Wait until the engine is ready for the first time.

        Raises:
            ModelError: the engine refused the model or an option; one line says why.
            EngineUnavailable: the engine process failed or ended before it was ready.
        """
        return await asyncio.shield(self._first_ready)

    async def score(self, request: ScoreRequest) -> LabelLogits:
        """Compute the label logits of a validated request. Cancelling the caller frees the engine's work.

        Raises:
            EngineUnavailable: the engine is starting or has ended, perhaps before it answered.
            RequestError: only the engine could see what is wrong with the request.
            EngineFault: the engine failed on this request.
            RequestRefused: the engine process ended, or its device failed, twice while it worked on this request.
        """
        async with self._quarantine.watched(request):
            try:
                return await self._running().score(next(self._ids), request)
            except RequestLost:
                self._quarantine.blame([request])
                raise

    async def statistics(self) -> dict[str, float]:
        """Return the engine's counts and the state of its cache.

        Raises:
            EngineUnavailable: the engine is starting or has ended.
        """
        return await self._running().operate(Operate(next(self._ids), "statistics"))

    async def flush_cache(self) -> int:
        """Forget every cached query that no request is using; return how many pages that freed.

        Raises:
            EngineUnavailable: the engine is starting or has ended.
        """
        return int((await self._running().operate(Operate(next(self._ids), "flush_cache")))["freed_pages"])

    async def start_profile(self, directory: str) -> None:
        """Begin a JAX profile in the engine process, to be written to a folder on its machine.

        Raises:
            EngineUnavailable: the engine is starting or has ended.
            RequestError: `profile_under_way`.
        """
        await self._running().operate(Operate(next(self._ids), "start_profile", directory))

    async def stop_profile(self) -> None:
        """End the profile; returns when it is written.

        Raises:
            EngineUnavailable: the engine is starting or has ended.
            RequestError: `no_profile`.
        """
        await self._running().operate(Operate(next(self._ids), "stop_profile"))

    def _running(self) -> "_EngineProcess":
        if self._process is None:
            raise EngineUnavailable("The engine is not ready.")
        return self._process

    async def close(self, within_s: float = _STOP_S) -> None:
        """End the engine process and fail what is in flight. Closing twice is fine.

        Args:
            within_s: Seconds that the process has to exit by itself, at most five.
        """
        self._stop_s = min(within_s, _STOP_S)
        self._supervision.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._supervision
        self._fail_start(EngineUnavailable("The engine was closed."))

    async def _supervise(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            began = time.monotonic()
            try:
                await self._live_once()
            except Exception as error:  # whatever it is, the server must not answer 503 for ever
                if not isinstance(error, MisError):
                    logger.exception("The supervision of the engine process failed.")
                    error = EngineUnavailable("The engine process was lost; the log says how.")
                if self._fail_start(error):
                    return
                if time.monotonic() - began > _STABLE_S:
                    backoff_s = _FIRST_BACKOFF_S
                logger.error("%s Restarting it in %g s.", error.message, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    async def _live_once(self) -> None:
        """Run one engine process until it ends.

        Raises:
            ModelError: it refused the model.
            EngineUnavailable: it ended; says how.
        """
        process = await _EngineProcess.start(self._command)
        self._starts += 1
        try:
            self._info = await process.configure(self._config)
            self._process = process
            if not self._first_ready.done():
                self._first_ready.set_result(self._info)
            watching = asyncio.create_task(self._kill_if_silent(process), name="engine heartbeat")
            try:
                await process.deliver_answers()
            finally:
                watching.cancel()
        except MalformedFrame as error:
            raise EngineUnavailable(f"The engine process broke the protocol: {error}") from None
        finally:
            self._process = None
            self._quarantine.blame(process.requests.values())
            await process.stop(self._stop_s)

    async def _kill_if_silent(self, process: "_EngineProcess") -> None:
        """Kill a process that is frozen as a whole; one whose device hangs exits by itself, see `watchdog_timeout`."""
        silence_s = min(_SILENCE_S, self._config.watchdog_timeout)
        with contextlib.suppress(EngineUnavailable):  # it ended by itself
            while True:
                await asyncio.sleep(silence_s / 4)
                try:
                    async with asyncio.timeout(silence_s):
                        await process.operate(Operate(next(self._ids), "statistics"))
                except TimeoutError:
                    logger.critical("The engine process did not answer for %g s and is killed.", silence_s)
                    process.kill()
                    return

    def _fail_start(self, error: MisError) -> bool:
        if self._first_ready.done():
            return False
        self._first_ready.set_exception(error)
        self._first_ready.exception()  # mark it as retrieved: nobody has to wait for it
        return True


class _EngineProcess:
    """One life of the engine process."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.requests: dict[int, ScoreRequest] = {}
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, command: Sequence[str]) -> "_EngineProcess":
        """Start the process with one end of a socket pair; it inherits our standard error.

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
    async def _start(cls, command: Sequence[str]) -> "_EngineProcess":
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                fd = theirs.fileno()
                process = await asyncio.create_subprocess_exec(*command, str(fd), pass_fds=(fd,), stdin=DEVNULL)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_READ_AHEAD_BYTES)
        except OSError as error:
            ours.close()
            raise EngineUnavailable(f"The engine process could not be started: {error.strerror}.") from None
        return cls(process, reader, writer)

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

    async def score(self, id: int, request: ScoreRequest) -> LabelLogits:
        """Send a request and wait for its answer."""
        try:
            frame = encode_frame(Score.of(id, request))
        except MalformedFrame:
            raise RequestError("request_too_large", "The request does not fit in one message to the engine.") from None
        self.requests[id] = request
        try:
            return await self._ask(id, frame)
        except asyncio.CancelledError:
            self._send(encode_frame(Cancel(id)))
            raise
        finally:
            del self.requests[id]

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
        while True:
            self._deliver(await self._receive())

    async def stop(self, within_s: float = _STOP_S) -> None:
        """Fail what is in flight, then stop the process: politely, then by force."""
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(EngineUnavailable("The engine ended before it answered."))
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
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _deliver(self, message: ToFront) -> None:
        if not isinstance(message, Scored | Rejected | Errored | Operated):
            raise MalformedFrame(f"{type(message).__name__} after the start.")
        answer = self.answers.get(message.id)
        if answer is None or answer.done():  # cancelled meanwhile
            return
        match message:
            case Scored():
                answer.set_result(message.label_logits())
            case Operated():
                answer.set_result(message.values)
            case Rejected():
                answer.set_exception(RequestError(message.code, message.message, message.param))
            case Errored(is_lost=True):
                answer.set_exception(RequestLost("The device failed while it computed this request."))
            case Errored():
                answer.set_exception(EngineFault("The engine failed on this request; its log says why."))

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
            async with asyncio.timeout(_STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            return "the conversation"
        return f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
