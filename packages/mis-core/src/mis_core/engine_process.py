"""The engine's process: `python -m mis_core.engine_process FD`, started by `client`.

`FD` is one end of a socket pair inherited from the front process; nothing listens anywhere. A thread
reads messages; the main thread loads the engine and then computes one request after the other. The
process lives exactly as long as the front wants it: it leaves at `Shutdown`, and at once when the
socket closes, since nobody could read an answer any more.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from mis_core.config import EngineConfig
from mis_core.errors import MisError, RequestError
from mis_core.request import LabelLogits, ScoreRequest
from mis_core.wire import (
    HEADER_BYTES,
    Cancel,
    Configure,
    Errored,
    Failed,
    MalformedFrame,
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

logger = logging.getLogger(__name__)

_REASON_CHARACTERS = 300


class ComputesLogits(Protocol):
    """What this process needs of an engine; `mis_core.engine.Engine` is one."""

    vocab_size: int
    context_length: int

    def compute(self, request: ScoreRequest) -> LabelLogits:
        """Compute the label logits of a request; blocks."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


EngineFactory = Callable[[EngineConfig], ComputesLogits]


class Channel:
    """Whole messages over a stream socket, blocking."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    def send(self, frame: bytes) -> None:
        """Write one encoded message.

        Raises:
            OSError: the front is gone.
        """
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


class Inbox:
    """Requests that wait for the device, in order of arrival. Cancelled ones leave without a trace."""

    def __init__(self) -> None:
        self._waiting: dict[int, Score] = {}
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, score: Score) -> None:
        """Append a request."""
        with self._changed:
            self._waiting[score.id] = score
            self._changed.notify()

    def cancel(self, id: int) -> None:
        """Drop a request if it still waits; one that runs or was answered is left alone."""
        with self._changed:
            self._waiting.pop(id, None)

    def close(self) -> None:
        """Let `take` return None from now on; what waits is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take(self) -> Score | None:
        """Remove and return the oldest request, waiting for one; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            return self._waiting.pop(next(iter(self._waiting)))


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
    if first is None:
        return 0  # the front gave up before it had a use for this process
    if not isinstance(first, Configure):
        raise MalformedFrame(f"The first message must be a configuration, not {type(first).__name__}.")
    inbox, is_loaded = Inbox(), threading.Event()
    threading.Thread(target=_read_messages, args=(channel, inbox, is_loaded), name="reader", daemon=True).start()
    engine = _load(channel, make_engine, first)
    if engine is None:
        return 1
    is_loaded.set()
    _tell(channel, encode_frame(Ready(vocab_size=engine.vocab_size, context_length=engine.context_length)))
    while (score := inbox.take()) is not None:
        _tell(channel, _answer(engine, score))
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


def _answer(engine: ComputesLogits, score: Score) -> bytes:
    try:
        return encode_frame(Scored.of(score.id, engine.compute(score.request())))
    except RequestError as error:
        return encode_frame(Rejected(id=score.id, code=error.code, message=error.message, param=error.param))
    except Exception:  # a poisoned request must not take its neighbours along
        logger.exception("Request %d failed.", score.id)
        return encode_frame(Errored(id=score.id))


def _read_messages(channel: Channel, inbox: Inbox, is_loaded: threading.Event) -> None:
    status = 0
    try:
        while (message := channel.receive()) is not None:
            match message:
                case Score():
                    inbox.put(message)
                case Cancel():
                    inbox.cancel(message.id)
                case Shutdown():
                    inbox.close()
                    if not is_loaded.is_set():
                        break
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
