"""An engine of other sources, in a process of its own, as a target."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mis_bench.perf.sources import pythonpath
from mis_bench.targets.blocking import BlockingTarget
from mis_bench.targets.target import About, CallFailed, Layout, Reply, TargetUnavailable
from mis_bench.workload import Workload

WORKER = Path(__file__).with_name("worker.py")
"""The program of a side's process."""


class Side(BlockingTarget):
    """The process of one side.

    Args:
        sources: Folder of the side, `base` or `head`, as `check_out` filled it.
        model: Directory of the checkpoint.
        options: Of the engine.

    Raises:
        TargetUnavailable: no engine came of it, or it runs other sources than it should.
    """

    def __init__(self, sources: Path, model: Path, options: Mapping[str, int | str]) -> None:
        self._name, self._turn = sources.name, threading.Lock()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=os.environ | {"PYTHONPATH": pythonpath(sources), "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        try:
            told = self._ask({"model": str(model), "options": dict(options)})
            if not Path(told["source"]).is_relative_to(sources):
                raise CallFailed(
                    "error", f"The {self._name} imported {told['source']}, which is not the code under test."
                )
        except CallFailed as error:
            self.close()
            raise TargetUnavailable(str(error)) from None
        self.about = About(
            name=self._name,
            backend="mis-engine",
            model=str(model),
            dtype=told["dtype"],
            options={**options, "devices": told["devices"]},
            versions={"mis-core": told["version"]},
        )

    def score(self, workload: Workload, layout: Layout = {}) -> Reply:  # noqa: B006 - nobody changes it
        """Score; `stages_ms` has the times in the process: `engine`, by the clock, and `cpu`, of all its threads."""
        told = self._ask({"score": workload.request | dict(layout)})
        return Reply(np.array(told["scores"], np.float64), told["stages_ms"], told["cached_tokens"])

    def forget(self) -> None:
        """Drop every cached query."""
        self._ask({"forget": True})

    def counts(self) -> dict[str, float]:
        """Return the engine's statistics."""
        return self._ask({"counts": True})

    def close(self) -> None:
        """End the process. Closing twice is fine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn, contextlib.suppress(BrokenPipeError):  # it ended
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            if line := self._process.stdout.readline():
                return json.loads(line)
        status = self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        raise CallFailed("error", f"The worker of the {self._name} ended with status {status}: {last[:300]}")
