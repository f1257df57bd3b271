"""Targets of this process, which block while they compute, for an event loop."""

import asyncio
import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from mis_bench.targets.target import (
    About,
    CallFailed,
    Layout,
    Reply,
    Target,
    TargetReply,
    TargetUnavailable,
    fitting,
    is_out_of_memory,
    scores_of,
    unsupported,
)
from mis_bench.workload import Task, Workload
from mis_core.errors import MisError, RequestError

MOST_AT_ONCE = 256
"""Threads of a target: calls under way; more wait for one."""


class BlockingTarget(ABC):
    """Something in this process that scores and blocks meanwhile; `Blocking` makes a `Target` of it.

    Safe to call from several threads at once.

    Attributes:
        about: What it is.
        tasks: What it can be asked.
    """

    about: About
    tasks: Collection[Task] = ("score",)

    @abstractmethod
    def score(self, workload: Workload, layout: Layout) -> Reply:
        """Score a workload; raises `CallFailed`, or an engine's `MisError` or a library's `RuntimeError` instead."""

    def forget(self) -> None:  # noqa: B027 - most need no other
        """Make it compute the next query anew; nothing to do where nothing is kept between calls."""

    def counts(self) -> dict[str, float]:
        """Return what it counts about itself: `memory_bytes`, this process's resident memory."""
        return {"memory_bytes": float(resident_bytes())}

    def product_rate(self) -> float | None:
        """Return the most floating-point operations a second of a layer's products; None where nobody measures them."""
        return None

    def close(self) -> None:  # noqa: B027 - likewise
        """Free what it holds, if that is more than memory. Closing twice is fine."""


class Blocking:
    """A target whose calls each take a thread. The times of a call are those in its thread, without the hand-over.

    Attributes:
        about: What it is.
        blocking: What computes.

    A call that is cancelled goes on in its thread, which cannot be stopped; nobody waits for it.
    """

    def __init__(self, target: BlockingTarget) -> None:
        self.about, self.blocking = target.about, target
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="mis-bench-call")

    def prepare(self, workload: Workload, layout: Layout = {}) -> tuple[Workload, Layout]:  # noqa: B006
        """Keep the workload as it is: nothing is encoded for this process.

        Raises `CallFailed`, `rejected`, for a task that the target does not have.
        """
        if workload.task not in self.blocking.tasks:
            raise unsupported(workload.task, self.about.backend, "it only scores.")
        return workload, layout

    async def call(self, request: tuple[Workload, Layout]) -> TargetReply:
        """Ask in a thread; raises `CallFailed`."""
        return await self._in_thread(partial(_timed, self.blocking, *request))

    async def forget(self) -> None:
        """Make it compute the next query anew; raises `CallFailed`."""
        await self._in_thread(self.blocking.forget)

    async def counts(self) -> dict[str, float]:
        """Return what it counts about itself."""
        return await self._in_thread(self.blocking.counts)

    async def product_rate(self) -> float | None:
        """Measure a layer's products."""
        return await self._in_thread(self.blocking.product_rate)

    async def close(self) -> None:
        """Free what it holds, without waiting for calls that were given up."""
        await self._in_thread(self.blocking.close)
        self._threads.shutdown(wait=False)

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


@dataclass(frozen=True, slots=True)
class BlockingOpener:
    """Opens a target of this process.

    Attributes:
        make: Makes it; raises `TargetUnavailable`.
        packages: Those that it needs.
        extra: The extra of mis-bench that has them.
        forgets: All of them do.
    """

    make: Callable[[], BlockingTarget]
    packages: Sequence[str] = ()
    extra: str = ""
    forgets: bool = True

    async def check(self) -> None:
        """Look for packages without importing them; raises `TargetUnavailable`."""
        for package in self.packages:
            if find_spec(package) is None:
                raise TargetUnavailable(f"There is no package {package} here: pip install 'mis-bench[{self.extra}]'.")

    async def open(self, tasks: Collection[Task] = ("score",)) -> Target:
        """Load it, whatever it will be asked; in a thread, since that takes long."""
        threads = ThreadPoolExecutor(1, thread_name_prefix="mis-bench-open")
        making = threads.submit(self.make)
        threads.shutdown(wait=False)
        try:
            return Blocking(await asyncio.wrap_future(making))
        except asyncio.CancelledError:
            making.add_done_callback(_close)  # nobody waits for it
            raise


class LocalModel(BlockingTarget):
    """A model of another library: takes token ids only, and one call at a time, which uses all cores or the whole GPU.

    Args:
        about: What it is.
        vocab_size: Token ids are below it.
        context_length: Most tokens of query and item.
        joins_calls: Whether `label_logprobs` may be called by several threads at once, since it computes their items
            together.
    """

    def __init__(self, about: About, vocab_size: int, context_length: int, *, joins_calls: bool = False) -> None:
        self.about, self._vocab_size, self._context_length = about, vocab_size, context_length
        self._lock = contextlib.nullcontext() if joins_calls else threading.Lock()

    @abstractmethod
    def label_logprobs(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"]
    ) -> Float[np.ndarray, "items labels"]:
        """Return the labels' log-probabilities after every item; query and items have at least one token each."""

    def score(self, workload: Workload, layout: Layout) -> Reply:
        """Score a workload of token ids; raises `CallFailed`, `rejected`, for what this model cannot take."""
        if layout:
            raise CallFailed("rejected", "This target does not accept a layout with a request.")
        query, items = self._token_ids(workload)
        with self._lock:
            logprobs = self.label_logprobs(query, items, workload.label_token_ids.astype(np.int64))
        return Reply(scores_of(logprobs.astype(np.float64), workload))

    def _token_ids(self, workload: Workload) -> tuple[list[int], list[list[int]]]:
        if isinstance(workload.query, str):
            raise CallFailed("rejected", "This target takes token ids, not texts.")
        items = [np.asarray(item, np.int32) for item in workload.items]
        sizes = [len(item) for item in items]
        longest = len(workload.query) + max(sizes)
        if not len(workload.query) or not min(sizes):
            raise CallFailed("rejected", "This target does not accept an empty query or an empty item.")
        if longest > self._context_length:
            most = self._context_length
            raise CallFailed("rejected", f"A query and item of {longest} tokens exceed the context of {most}.")
        largest = int(np.concatenate([workload.query, workload.label_token_ids, *items]).max())
        if largest >= self._vocab_size:
            raise CallFailed("rejected", f"The token id {largest} exceeds the vocabulary of {self._vocab_size}.")
        return workload.query.tolist(), [item.tolist() for item in items]


def _close(made: Future[BlockingTarget]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def resident_bytes() -> int:
    """Return this process's resident memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - not a file on a disk
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _timed(target: BlockingTarget, workload: Workload, layout: Layout) -> TargetReply:
    sent = time.perf_counter()
    try:
        reply = target.score(workload, layout)
    except (MisError, RuntimeError) as error:  # JAX's own are RuntimeErrors
        raise _failure(error) from error
    done = time.perf_counter()
    fitting(reply.scores, workload)
    return TargetReply(reply, sent, done)


def _failure(error: Exception) -> CallFailed:
    """Name an exception: `rejected`, `out_of_memory` if that is what led to it, or `error`."""
    message = (str(error).splitlines() or [type(error).__name__])[0][:300]
    if isinstance(error, RequestError):
        return CallFailed("rejected", message)
    cause: BaseException | None = error
    while cause is not None:
        if is_out_of_memory(str(cause)):
            return CallFailed("out_of_memory", message)
        cause = cause.__cause__ or cause.__context__
    return CallFailed("error", message)
