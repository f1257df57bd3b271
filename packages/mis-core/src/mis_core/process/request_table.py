"""The requests that the engine process works on, and its end of the socket, over which it answers them."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.heap import TRIM_S, trim
from mis_core.process.wire import (
    HEADER_BYTES,
    Errored,
    Generate,
    Generated,
    Operate,
    Operated,
    Rejected,
    Score,
    Scored,
    ToEngine,
    ToFront,
    decode_for_engine,
    encode_frame,
    payload_size,
)
from mis_core.requests import EngineOutput, NewToken

if TYPE_CHECKING:
    from mis_core.engine import Engine

logger = logging.getLogger(__name__)

_HUNG = 3  # exit status


class Channel:
    """Whole messages over a stream socket, blocking; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._stream = connection.makefile("rb")

    def post(self, message: ToFront) -> None:
        """Send a message; a front that is gone ends this process through its reader.

        Raises:
            MalformedFrame: it is too large.
        """
        frame = encode_frame(message)
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(frame)

    def receive(self) -> ToEngine | None:
        """Read one message, or None when the front is gone.

        Raises:
            MalformedFrame: what arrived is not a message.
        """
        header = self._read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        size = payload_size(header)
        payload = self._read(size)
        return decode_for_engine(payload) if len(payload) == size else None

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except ConnectionError:  # the front left answers unread
            return b""


class RequestTable:
    """The requests that the engine is working on."""

    def __init__(self, channel: Channel, engine: "Engine") -> None:
        self._channel = channel
        self._engine = engine
        self._cancels: dict[int, Callable[[], object]] = {}  # what ends each early
        self._changed = threading.Condition()
        self._is_closed = False

    def add(self, score: Score) -> None:
        """Submit a request to the engine; its answer is sent when it is ready."""
        try:
            future = self._engine.submit(score.request)
        except Exception as error:
            self._answer(score.id, error)
            return
        with self._changed:
            self._cancels[score.id] = future.cancel
        future.add_done_callback(lambda done: self._finish(score.id, done))

    def generate(self, generate: Generate) -> None:
        """Submit a sequence to the engine; its tokens are sent as they come."""
        try:
            with self._changed:  # its last token may come before this returns
                self._cancels[generate.id] = self._engine.submit_generation(generate.request, self._send, generate.id)
        except Exception as error:
            self._answer(generate.id, error)

    def cancel(self, id: int) -> None:
        """Cancel a request, unless it is answered already."""
        with self._changed:
            cancel = self._cancels.get(id)
        if cancel is not None:
            cancel()
            self._forget(id)

    def operate(self, operate: Operate) -> None:
        """Do something to the engine as a whole; writing a profile takes seconds, so it has a thread of its own."""
        if operate.action.endswith("_profile"):
            threading.Thread(target=self._operate, args=(operate,), name=operate.action, daemon=True).start()
        else:
            self._operate(operate)

    def close(self) -> None:
        """Stop `wait` once everything in the table is answered. Nothing is added after this."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def wait(self) -> None:
        """Block until the table is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed and not self._cancels)

    def watch(self, timeout_s: float) -> None:
        """Exit when the engine has work but makes no progress for `timeout_s`. Never returns.

        A device that hangs cannot be freed from within this process; the front restarts it.
        """
        seen, since = self._engine.progress, time.monotonic()
        while True:
            time.sleep(min(timeout_s / 4, 1.0))
            progress = self._engine.progress
            if progress != seen or not self._cancels:
                seen, since = progress, time.monotonic()
            elif time.monotonic() - since > timeout_s:
                logger.critical("No progress for %.0f s with %d requests waiting.", timeout_s, len(self._cancels))
                os._exit(_HUNG)

    def trim_when_idle(self) -> None:
        """Return free memory to the system while nothing is asked; steps would ask for it again. Never returns."""
        while True:
            time.sleep(TRIM_S)
            if not self._cancels:
                trim()

    def _finish(self, id: int, future: Future[EngineOutput]) -> None:
        if not future.cancelled():
            error = future.exception()
            if error is None:
                self._channel.post(Scored(id, future.result()))
            else:
                self._answer(id, error)
        self._forget(id)

    def _send(self, outputs: Sequence[tuple[int, NewToken | Exception]]) -> None:
        tokens = [(number, token) for number, token in outputs if isinstance(token, NewToken)]
        if tokens:
            self._channel.post(Generated.of(tokens))
        for number, token in outputs:
            if isinstance(token, Exception):
                self._answer(number, token)
            if isinstance(token, Exception) or token.finish_reason is not None:
                self._forget(number)

    def _forget(self, id: int) -> None:
        with self._changed:
            self._cancels.pop(id, None)
            self._changed.notify()

    def _operate(self, operate: Operate) -> None:
        values: dict[str, float] = {}
        try:
            match operate.action:
                case "statistics":
                    values = self._engine.statistics()
                case "flush_cache":
                    values = {"freed_pages": self._engine.flush_cache()}
                case "start_profile":
                    self._engine.start_profile(str(operate.argument))
                case "stop_profile":
                    self._engine.stop_profile()
        except Exception as error:
            self._answer(operate.id, error)
        else:
            self._channel.post(Operated(operate.id, values))

    def _answer(self, id: int, error: BaseException) -> None:
        if isinstance(error, RequestError):
            self._channel.post(Rejected(id=id, code=error.code, message=error.message, param=error.param))
        else:  # a poisoned request must not take its neighbours along
            logger.error("Request %d failed.", id, exc_info=error)
            self._channel.post(Errored(id=id, is_lost=isinstance(error, EngineUnavailable)))
