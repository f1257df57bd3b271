"""A worker process of one side, as its parent sees it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from mis_bench.perf.errors import PerfError
from mis_bench.perf.sources import pythonpath

_START_S, _ANSWER_S = 600.0, 300.0


class About(BaseModel):
    """What a worker says about itself.

    Attributes:
        source: File of the `mis_core` that it imported.
        version: Of `mis_core`.
        platform: `cpu`, `gpu` or `tpu`.
        device: Count and kind.
        dtype: Of weights and activations.
        native: Whether the native CPU library is in use.
    """

    model_config = ConfigDict(extra="forbid")

    source: str
    version: str
    platform: str
    device: str
    dtype: str
    native: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """Calls that one side made in a row: seconds by the clock, and of all its threads on the CPU."""

    wall_s: Sequence[float]
    cpu_s: Sequence[float]


class Side:
    """One worker process. Use it as a context manager."""

    def __init__(self, name: str, sources: Path, job: dict[str, Any], *, worker: Path | None = None) -> None:
        """Start the process; `wait` waits until it is ready.

        Args:
            name: `base` or `head`, for messages.
            sources: Folder that `put_in_place` filled.
            job: Its `model`, `options` and `requests`.
            worker: Another program with the same protocol.
        """
        self.name, self._sources = name, sources
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        command = [sys.executable, "-P", str(worker or Path(__file__).with_name("worker.py"))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"PYTHONPATH": pythonpath(sources), "PYTHONHASHSEED": "0"},
        )
        self._send(job)

    def wait(self) -> About:
        """Wait until the engine is ready; return what it is.

        Raises:
            PerfError: it did not start, or runs other sources than it should.
        """
        about = About.model_validate(self._answer(_START_S))
        if not Path(about.source).is_relative_to(self._sources):
            raise PerfError(f"The {self.name} imported {about.source}, which is not the version to be measured.")
        return about

    def turn(self, workload: str, calls: int) -> Turn:
        """Let it call a workload some times.

        Raises:
            PerfError: it ended or is stuck.
        """
        return Turn(**self._ask({"workload": workload, "calls": calls}))

    def yardstick(self, products: int = 3) -> Turn:
        """Let it multiply the same two matrices, which tells how fast the machine is just now.

        Raises:
            PerfError: it ended or is stuck.
        """
        return Turn(**self._ask({"yardstick": products}))

    def close(self) -> None:
        """End the process. Closing twice is fine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self._send(question)
        return self._answer(_ANSWER_S)

    def _send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended; reading its answer says why
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        watch = threading.Timer(limit_s, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> PerfError:
        status = self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        return PerfError(f"The worker of the {self.name} ended with status {status}: {last[:300]}")
