"""An engine process without a model: `python scripted_engine.py FD`. The real loop, a scripted engine.

`EngineConfig.model` scripts the start and a request's `cache_salt` what happens to it.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, ModelError, RequestError
from mis_core.process.main import run
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, ScoreRequest
from mis_core.tasks.limits import Limits

Listener = Callable[[Sequence[tuple[int, NewToken | Exception]]], None]


class ScriptedEngine:
    """Answers logit = first token of the item + label id; writes a line per computed request to `log`."""

    limits = Limits(context_length=4096, vocab_size=1000)
    summary: ClassVar = {"devices": "1 x pretended"}
    created = 0
    parts = ()

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self.progress = 0
        self._device = ThreadPoolExecutor(1)

    def submit(self, request: ScoreRequest) -> Future[EngineOutput]:
        return self._device.submit(self.compute, request)

    def compute(self, request: ScoreRequest) -> EngineOutput:
        self._write(str(request.cache_salt))
        match request.cache_salt:
            case "refuse":
                raise RequestError("context_length_exceeded", "Item 3 is too long.", "items")
            case "log":
                logging.getLogger("mis_core.engine.engine").info("told")
                raise FloatingPointError("a poisoned request")
            case "fail":
                raise FloatingPointError("a poisoned request")
            case "lose":
                raise EngineUnavailable("The engine lost this request: XlaRuntimeError.")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slow":
                time.sleep(0.4)
            case "hang":
                time.sleep(600)
        logits = request.item_tokens[request.item_starts[:-1], None] + request.label_ids
        self.progress += 1
        normalisers = np.full(request.num_items, 7, np.float32) if request.needs_log_sum_exp else None
        return EngineOutput(logits.astype(np.float32), normalisers, cached_tokens=2, timings_ms={"device": 1.5})

    def submit_generation(self, request: GenerateRequest, listener: Listener, key: int) -> Callable[[], None]:
        """Count on from the last token of the prompt; scripts come to pass at the third token."""
        ended = threading.Event()
        self._device.submit(self._count_on, request, listener, key, ended)
        return ended.set

    def _count_on(self, request: GenerateRequest, listener: Listener, key: int, ended: threading.Event) -> None:
        for number in range(request.max_new_tokens):
            if number == 2:
                match request.cache_salt:
                    case "fail":
                        listener([(key, FloatingPointError("a poisoned request"))])
                        return
                    case "lose":
                        listener([(key, EngineUnavailable("The engine lost this request: XlaRuntimeError."))])
                        return
                    case "die":
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "slow":
                        ended.wait(600)
            if ended.is_set():
                self._write(f"ended after {number}")
                return
            self.progress += 1
            reason = "length" if number == request.max_new_tokens - 1 else None
            token = int(request.prompt[-1]) + 1 + number
            tops = np.arange(request.top_tokens, dtype=np.int32)
            listener([(key, NewToken(token, -0.5, tops, -tops.astype(np.float32), reason, cached_tokens=64))])

    def statistics(self) -> dict[str, float]:
        return {"requests": self.progress}

    def flush_cache(self) -> int:
        return 7

    def start_profile(self, directory: str) -> None:
        if directory == "taken":
            raise RequestError("profile_under_way", "A profile is under way.")
        self._write(f"profile in {directory}")

    def stop_profile(self) -> None:
        time.sleep(0.3)
        self._write("profile written")

    def close(self) -> None:
        self._write("closed")

    def _write(self, line: str) -> None:
        if self._log is not None:
            with self._log.open("a") as log:
                log.write(f"{line}\n")


def load(config: EngineConfig) -> ScriptedEngine:
    """Start, or fail to, as the model's name says; `log:PATH` names the log."""
    match config.model.partition(":"):
        case ("refused", _, _):
            raise ModelError("model.norm.weight is missing.")
        case ("broken", _, _):
            raise MemoryError("no room\nfor weights")
        case ("dead", _, _):
            os._exit(3)
        case ("endless", _, _):
            time.sleep(600)
        case ("log", _, path):
            return ScriptedEngine(Path(path))
    return ScriptedEngine(None)


if __name__ == "__main__":
    logging.basicConfig()
    sys.exit(run(socket.socket(fileno=int(sys.argv[1])), load))
