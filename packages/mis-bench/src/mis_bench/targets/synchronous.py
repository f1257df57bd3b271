"""Servers for commands that still block. Goes with the last of them."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from mis_bench.targets.base import About, Opener, Reply, Target, ask
from mis_bench.workload import Workload

Found = TypeVar("Found")


class Synchronous:
    """A target with an event loop of its own, in a thread."""

    def __init__(self, opener: Opener) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._target: Target = self._wait(opener.open())

    @property
    def about(self) -> About:
        """What it is."""
        return self._target.about

    def score(self, workload: Workload) -> Reply:
        """Score a workload."""
        return self._wait(ask(self._target, workload))

    def forget(self) -> None:
        """Make it compute the next query anew."""
        self._wait(self._target.forget())

    def counts(self) -> dict[str, float]:
        """Return what it counts."""
        return self._wait(self._target.counts())

    def close(self) -> None:
        """Close it."""
        self._wait(self._target.close())

    def _wait(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def with_timeout(spec: str, options: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Return options with which a server's connection waits as long as its caller, unless they say otherwise."""
    return {"timeout_s": str(seconds), **options} if "=" in spec else dict(options)
