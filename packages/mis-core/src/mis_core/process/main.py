"""The engine's process: `python -m mis_core.process.main FD`, started by `client`.

`FD` is one end of a socket pair inherited from the front process; nothing listens anywhere. A thread
reads messages and gives requests to the engine, whose own thread answers them as they are ready; the
main thread loads the engine and waits for the end. The process lives exactly as long as the front
wants it: it exits after `Shutdown`, and at once when the socket closes, since nobody could read an answer.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, MisError, RequestError
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
    ToEngine,
    decode_for_engine,
    encode_frame,
    payload_size,
)
from mis_core.scoring.request import LabelLogits, ScoreRequest

logger = logging.getLogger(__name__)

_REASON_CHARACTERS = 300
_HUNG = 3  # exit status


class ComputesLogits(Protocol):
    """What this process needs of an engine; `mis_core.engine.Engine` is one."""

    vocab_size: int
    context_length: int

    @property
    def progress(self) -> int:
        """A number that grows while the device works."""
        ...

    @property
    def summary(self) -> dict[str, str | int | float]:
        """What was loaded, for people."""
        ...

    def submit(self, request: ScoreRequest) -> Future[LabelLogits]:
        """Begin to compute the label logits of a request; cancelling the future frees it."""
        ...

    def statistics(self) -> dict[str, float]:
        """Return counts since the start, and the cache's state."""
        ...

    def flush_cache(self) -> int:
        """Forget cached prefixes; return how many pages that freed."""
        ...

    def start_profile(self, directory: str) -> None:
        """Begin a profile."""
        ...

    def stop_profile(self) -> None:
        """End the profile and write it."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


EngineFactory = Callable[[EngineConfig], ComputesLogits]


class Channel:
    """Whole messages over a stream socket, blocking; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._stream = connection.makefile("rb")

    def send(self, frame: bytes) -> None:
        """Write one encoded message.

        Raises:
            OSError: the front is gone.
        """
        with self._sending:
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

    def __init__(self, channel: Channel, engine: ComputesLogits) -> None:
        self._channel = channel
        self._engine = engine
        self._futures: dict[int, Future[LabelLogits]] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def add(self, score: Score) -> None:
        """Submit a request to the engine; its answer is sent when it is ready."""
        try:
            future = self._engine.submit(score.request())
        except Exception as error:
            self._answer(score.id, error)
            return
        with self._changed:
            self._futures[score.id] = future
        future.add_done_callback(lambda done: self._finish(score.id, done))

    def cancel(self, id: int) -> None:
        """Cancel a request, unless it is answered already."""
        with self._changed:
            future = self._futures.get(id)
        if future is not None:
            future.cancel()

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
            self._changed.wait_for(lambda: self._is_closed and not self._futures)

    def watch(self, timeout_s: float) -> None:
        """Exit when the engine has work but makes no progress for `timeout_s`. Never returns.

        A device that hangs cannot be freed from within this process; the front restarts it.
        """
        seen, since = self._engine.progress, time.monotonic()
        while True:
            time.sleep(min(timeout_s / 4, 1.0))
            progress = self._engine.progress
            if progress != seen or not self._futures:
                seen, since = progress, time.monotonic()
            elif time.monotonic() - since > timeout_s:
                logger.critical("No progress for %.0f s with %d requests waiting.", timeout_s, len(self._futures))
                os._exit(_HUNG)

    def _finish(self, id: int, future: Future[LabelLogits]) -> None:
        if not future.cancelled():
            error = future.exception()
            if error is None:
                _tell(self._channel, encode_frame(Scored.of(id, future.result())))
            else:
                self._answer(id, error)
        with self._changed:
            self._futures.pop(id, None)
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
            _tell(self._channel, encode_frame(Operated(operate.id, values)))

    def _answer(self, id: int, error: BaseException) -> None:
        if isinstance(error, RequestError):
            frame = encode_frame(Rejected(id=id, code=error.code, message=error.message, param=error.param))
        else:  # a poisoned request must not take its neighbours along
            logger.error("Request %d failed.", id, exc_info=error)
            frame = encode_frame(Errored(id=id, is_lost=isinstance(error, EngineUnavailable)))
        _tell(self._channel, frame)


def run(connection: socket.socket, make_engine: EngineFactory) -> int:
    """Serve one front until it asks to stop.

    Args:
        connection: Connected stream socket.
        make_engine: Loads the engine; its `MisError`s reach the user as one line.

    Returns:
        The process's exit status: 0 after `Shutdown` or without a front, 1 if the engine could not start.
    """
    channel = Channel(connection)
    first = channel.receive()
    if first is None or isinstance(first, Shutdown):
        return 0  # the front gave up before it had a use for this process
    if not isinstance(first, Configure):
        raise MalformedFrame(f"The first message must be a configuration, not {type(first).__name__}.")
    logging.getLogger("mis_core").setLevel(first.log_level)
    opened: Future[RequestTable] = Future()
    threading.Thread(target=_read_messages, args=(channel, opened), name="reader", daemon=True).start()
    engine = _load(channel, make_engine, first)
    if engine is None:
        return 1
    table = RequestTable(channel, engine)
    ready = Ready(vocab_size=engine.vocab_size, context_length=engine.context_length, summary=engine.summary)
    _tell(channel, encode_frame(ready))
    opened.set_result(table)
    timeout_s = EngineConfig(**first.options).watchdog_timeout
    threading.Thread(target=table.watch, args=(timeout_s,), name="watchdog", daemon=True).start()
    table.wait()
    engine.close()
    return 0


def _tell(channel: Channel, frame: bytes) -> None:
    # A front that is gone ends this process through the reader.
    with contextlib.suppress(OSError):
        channel.send(frame)


def _load(channel: Channel, make_engine: EngineFactory, configure: Configure) -> ComputesLogits | None:
    try:
        return make_engine(EngineConfig(**configure.options))
    except MisError as error:
        _tell(channel, encode_frame(Failed(message=error.message)))
    except Exception as error:
        logger.exception("The engine could not start.")
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_REASON_CHARACTERS]
        _tell(channel, encode_frame(Failed(message=f"The engine could not start: {reason}", fault=True)))
    return None


def _read_messages(channel: Channel, opened: Future[RequestTable]) -> None:
    status = 0
    try:
        while (message := channel.receive()) is not None:
            match message:
                case Score():
                    opened.result().add(message)
                case Cancel():
                    opened.result().cancel(message.id)
                case Operate():
                    opened.result().operate(message)
                case Shutdown():
                    if not opened.done():
                        break
                    opened.result().close()
                case Configure():
                    raise MalformedFrame("A second configuration arrived.")
    except MalformedFrame as error:
        logger.error("%s The engine stops.", error)
        status = 1
    # The main thread may be deep in a compilation or a step that nobody waits for any more.
    os._exit(status)


def _load_engine(config: EngineConfig) -> ComputesLogits:
    # Imported once the front is connected: importing JAX takes seconds and may fail with a reason to report.
    from mis_core.engine import Engine

    return Engine(config, progress=sys.stderr.isatty())


def main() -> int:
    """Run the engine for the front that started this process."""
    # The front decides when to stop; a Ctrl-C or a stop of the whole process group reaches it as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return run(socket.socket(fileno=int(sys.argv[1])), _load_engine)


if __name__ == "__main__":
    sys.exit(main())
