"""The server, or the scoring of files, with an engine that computes nothing, so that it alone is measured.

    python packages/mis-server/benchmarks/instant_engine.py serve MODEL [flags of `mis-server serve`]
    python packages/mis-server/benchmarks/instant_engine.py score MODEL [flags of `mis-server score`]

Every score is 1. `INSTANT_ENGINE_SLEEP_MS` is how long the engine sleeps before each answer; it uses no CPU meanwhile.
"""

import functools
import os
import socket
import sys
import time

import numpy as np

from mis_core.process.wire import (
    HEADER_BYTES,
    Configure,
    Operate,
    Operated,
    Ready,
    Score,
    Scored,
    Shutdown,
    ToEngine,
    decode_for_engine,
    encode_frame,
    payload_size,
)
from mis_core.requests import EngineOutput

SLEEP_MS = "INSTANT_ENGINE_SLEEP_MS"
_READY = Ready(vocab_size=2048, context_length=4096, summary={"dtype": "float32"})


def answer_all(connection: socket.socket, sleep_s: float) -> None:
    """Answer what the front sends until it says that this is the end."""
    while not isinstance(message := _receive(connection), Shutdown):
        match message:
            case Configure():
                connection.sendall(encode_frame(_READY))
            case Operate(id=id):
                connection.sendall(encode_frame(Operated(id, {})))
            case Score():
                time.sleep(sleep_s)
                shape = message.request.num_items, message.request.label_ids.shape[1]
                timings = {"queue": 0.1, "plan": 0.1, "device": 1.0}  # as a real engine's: their counting costs too
                logits = EngineOutput(np.zeros(shape, np.float32), np.zeros(shape[0], np.float32), timings_ms=timings)
                connection.sendall(encode_frame(Scored(message.id, logits)))


def _receive(connection: socket.socket) -> ToEngine:
    return decode_for_engine(_read(connection, payload_size(_read(connection, HEADER_BYTES))))


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        received = connection.recv(size - len(data))
        if not received:
            sys.exit("The front is gone.")
        data += received
    return bytes(data)


def _run() -> None:
    from mis_server import model
    from mis_server.cli import main

    command = (sys.executable, __file__)
    model.EngineClient = functools.partial(model.EngineClient, command=command)  # pyrefly: ignore[bad-assignment]
    main()


if __name__ == "__main__":
    if sys.argv[1] in ("serve", "score"):
        _run()
    else:
        with socket.socket(fileno=int(sys.argv[1])) as to_front:
            answer_all(to_front, float(os.environ.get(SLEEP_MS, "0")) / 1e3)
