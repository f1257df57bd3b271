"""The engine's process: `python -m mis_core.process.main FD`, started by `client`.

`FD` is one end of a socket pair inherited from the front process; nothing listens anywhere. A thread
reads messages and gives requests to the engine, whose own thread answers them as they are ready; the
main thread loads the engine and waits for the end. The process lives exactly as long as the front
wants it: it exits after `Shutdown`, and at once when the socket closes, since nobody could read an answer. Standard
input is its lifeline: see `lifeline`.
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mis_core.config import EngineConfig
from mis_core.errors import MisError
from mis_core.process.heap import without_collection
from mis_core.process.lifeline import end_with_starter
from mis_core.process.request_table import Channel, RequestTable
from mis_core.process.wire import (
    Cancel,
    Configure,
    Failed,
    Generate,
    MalformedFrame,
    Operate,
    Ready,
    Score,
    Shutdown,
)

if TYPE_CHECKING:
    from mis_core.engine import Engine

logger = logging.getLogger(__name__)

_REASON_CHARACTERS = 300

EngineFactory = Callable[[EngineConfig], "Engine"]


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
    limits = engine.limits
    ready = Ready(
        vocab_size=limits.vocab_size,
        context_length=limits.context_length,
        summary=engine.summary,
        head_labels=limits.head_labels,
        head_activation=limits.head_activation,
        architecture=limits.architecture,
        only_task=limits.only_task,
        signs=limits.signs,
        created=engine.created,
        parts=engine.parts,
    )
    channel.post(ready)
    opened.set_result(table)
    timeout_s = EngineConfig(**first.options).watchdog_timeout
    threading.Thread(target=table.watch, args=(timeout_s,), name="watchdog", daemon=True).start()
    threading.Thread(target=table.trim_when_idle, name="memory", daemon=True).start()
    table.wait()
    engine.close()
    return 0


def _load(channel: Channel, make_engine: EngineFactory, configure: Configure) -> "Engine | None":
    try:
        with without_collection():
            return make_engine(EngineConfig(**configure.options))
    except MisError as error:
        channel.post(Failed(message=error.message))
    except Exception as error:
        logger.exception("The engine could not start.")
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_REASON_CHARACTERS]
        channel.post(Failed(message=f"The engine could not start: {reason}", fault=True))
    return None


def _read_messages(channel: Channel, opened: Future[RequestTable]) -> None:
    status = 0
    try:
        while (message := channel.receive()) is not None:
            match message:
                case Score():
                    opened.result().add(message)
                case Generate():
                    opened.result().generate(message)
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


def _load_engine(config: EngineConfig) -> "Engine":
    # Imported once the front is connected: importing JAX takes seconds and may fail with a reason to report.
    from mis_core.engine import Engine

    return Engine(config, progress=sys.stderr.isatty())


def main() -> int:
    """Run the engine for the front that started this process."""
    end_with_starter(sys.stdin.fileno())
    # The front decides when to stop; a Ctrl-C or a stop of the whole process group reaches it as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return run(socket.socket(fileno=int(sys.argv[1])), _load_engine)


if __name__ == "__main__":
    sys.exit(main())
