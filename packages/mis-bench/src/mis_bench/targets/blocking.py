"""Targets of this process, which block while they compute, for an event loop."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from mis_bench.targets.base import (
    About,
    Answer,
    BlockingTarget,
    CallFailed,
    Capabilities,
    Layout,
    Target,
    fitting,
)
from mis_bench.workload import Workload

Found = TypeVar("Found")

MOST_AT_ONCE = 256
"""Threads of a target: calls under way; more wait for one."""


@dataclass(frozen=True, slots=True)
class _Request:
    workload: Workload
    target: BlockingTarget


class Blocking:
    """A target whose calls each take a thread. The times of a call are those in its thread, without the hand-over.

    A call that is cancelled goes on in its thread, which cannot be stopped; nobody waits for it.
    """

    def __init__(self, target: BlockingTarget) -> None:
        self._target = target
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="mis-bench-call")

    @property
    def about(self) -> About:
        """What it is."""
        return self._target.about

    def prepare(self, workload: Workload, layout: Layout = {}) -> _Request:  # noqa: B006 - nobody changes it
        """Keep the workload as it is: nothing is encoded for this process."""
        if not layout:
            return _Request(workload, self._target)
        if not hasattr(self._target, "asking"):
            raise CallFailed("rejected", f"{self.about.name} takes no layout with a request.")
        return _Request(workload, self._target.asking(**layout))

    async def call(self, request: _Request) -> Answer:
        """Ask in a thread; raises `CallFailed`."""
        return await self._in_thread(lambda: _timed(request))

    async def forget(self) -> None:
        """Make it compute the next query anew; raises `CallFailed`."""
        await self._in_thread(self._target.forget)

    async def counts(self) -> dict[str, float]:
        """Return what it counts about itself."""
        return await self._in_thread(self._target.counts)

    async def close(self) -> None:
        """Free what it holds, without waiting for calls that were given up."""
        await self._in_thread(self._target.close)
        self._threads.shutdown(wait=False)

    async def _in_thread(self, function: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


@dataclass(frozen=True, slots=True)
class BlockingOpener:
    """Opens a target of this process.

    Attributes:
        make: Makes it; raises `TargetUnavailable`.
        capabilities: What it can do.
        find: Looks whether it can run, without loading anything; raises `TargetUnavailable`.
    """

    make: Callable[[], BlockingTarget]
    capabilities: Capabilities
    find: Callable[[], None] = lambda: None

    async def check(self) -> None:
        """Look whether it can run."""
        self.find()

    async def open(self) -> Target:
        """Load it; in a thread, since that takes long."""
        return Blocking(await asyncio.to_thread(self.make))


def _timed(request: _Request) -> Answer:
    sent = time.perf_counter()
    reply = request.target.score(request.workload)
    done = time.perf_counter()
    fitting(reply.scores, request.workload)
    return Answer(reply, sent, done)
