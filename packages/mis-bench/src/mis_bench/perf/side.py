"""An engine of other sources, in a process of its own, as a target."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mis_bench.perf.sources import pythonpath
from mis_bench.targets.base import About, Answer, CallFailed, Capabilities, Layout, Reply, TargetUnavailable, fitting
from mis_bench.workload import Workload

WORKER = Path(__file__).with_name("worker.py")
_START_S = 600.0
_MOST_BYTES = 1 << 26  # of an answer


@dataclass(frozen=True, slots=True)
class SideOpener:
    """Starts the process of one side.

    Attributes:
        name: `base` or `head`.
        sources: Folder that `put_in_place` filled.
        model: Directory of the checkpoint.
        options: Of the engine.
        worker: Program that speaks the protocol of `worker.py`.
    """

    name: str
    sources: Path
    model: Path
    options: Mapping[str, int | str]
    worker: Path = WORKER

    @property
    def capabilities(self) -> Capabilities:
        """It forgets; requests are laid out as the engine likes."""
        return Capabilities()

    async def check(self) -> None:
        """Nothing can be missing that `put_in_place` did not find."""

    async def open(self) -> "Side":
        """Start it and wait until its engine is ready.

        Raises:
            TargetUnavailable: it did not start, or runs other sources than it should.
        """
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(self.worker),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=_MOST_BYTES,
            env=os.environ | {"PYTHONPATH": pythonpath(self.sources), "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        side = Side(self.name, self.model, self.options, process, errors)
        try:
            await side.start()
            if not Path(side.source).is_relative_to(self.sources):
                raise TargetUnavailable(
                    f"The {self.name} imported {side.source}, which is not the version to be measured."
                )
        except BaseException:
            await side.close()
            raise
        return side


class Side:
    """One side's process. Its calls are timed where the engine is, without the pipe in between."""

    def __init__(
        self,
        name: str,
        model: Path,
        options: Mapping[str, int | str],
        process: asyncio.subprocess.Process,
        errors: Any,
    ) -> None:
        self._process, self._errors, self._turn = process, errors, asyncio.Lock()
        self._job = {"model": str(model), "options": dict(options)}
        self._about = About(name=name, backend="mis-engine", model=str(model))
        self.source = ""

    async def start(self) -> None:
        """Hand it its job; raises `TargetUnavailable` if no engine comes of it."""
        try:
            told = await asyncio.wait_for(self._ask(self._job), _START_S)
        except CallFailed as error:
            raise TargetUnavailable(str(error)) from None
        except TimeoutError:
            raise TargetUnavailable(f"The worker of the {self._about.name} did not start in {_START_S:g} s.") from None
        self.source = str(told["source"])
        self._about = About(
            name=self._about.name,
            backend="mis-engine",
            model=self._about.model,
            dtype=told["dtype"],
            options={**self._job["options"], "devices": told["devices"], "native": told["native"]},
            versions={"mis-core": told["version"]},
        )

    @property
    def about(self) -> About:
        """What it is."""
        return self._about

    def prepare(self, workload: Workload, layout: Layout = {}) -> tuple[Workload, bytes]:  # noqa: B006
        """Encode a request."""
        return workload, _line({"score": workload.request | dict(layout)})

    async def call(self, request: tuple[Workload, bytes]) -> Answer:
        """Ask; `stages_ms` has the CPU time of all threads as `cpu`. Raises `CallFailed`."""
        workload, line = request
        told = await self._ask(line)
        scores = fitting(np.array(told["scores"], np.float64), workload)
        return Answer(Reply(scores, {"cpu": told["cpu_ms"]}, told["cached_tokens"]), told["sent_s"], told["done_s"])

    async def forget(self) -> None:
        """Drop every cached query."""
        await self._ask({"forget": True})

    async def counts(self) -> dict[str, float]:
        """Return the engine's statistics."""
        return await self._ask({"counts": True})

    async def close(self) -> None:
        """End the process. Closing twice is fine."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 30)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._errors.close()

    async def _ask(self, question: Mapping[str, Any] | bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            try:
                self._process.stdin.write(question if isinstance(question, bytes) else _line(question))
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
            except ConnectionError:  # it ended
                line = b""
            except asyncio.CancelledError:  # its answer would be taken for the next one's
                self._process.kill()
                raise
        if not line:
            raise await self._failure()
        return json.loads(line)

    async def _failure(self) -> CallFailed:
        status = await self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        return CallFailed("error", f"The worker of the {self._about.name} ended with status {status}: {last[:300]}")


def _line(question: Mapping[str, Any]) -> bytes:
    return json.dumps(question).encode() + b"\n"
