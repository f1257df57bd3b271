"""Processes in which texts become tokens: no text holds up the event loop, and abandoned work is killed."""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from mis_core.errors import EngineUnavailable
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers.process import ProcessEnded, TokenizerProcess

logger = logging.getLogger(__name__)

SMALL = 131_072
"""Bytes of a small body, and characters that tokenising it may read: half a second for the worst text."""

_MAX_PROCESSES = 4  # of each kind; each holds the vocabulary
_HEAD_START_S = 1e-4  # for each byte that another body is longer; about thirty times what the worst text takes
_RENEWED_BYTES = 4 * 1024 * 1024  # after a larger body, a process keeps memory that the next body does not need
_RETRY_S = 1.0

Result = TypeVar("Result")


@dataclass(order=True, slots=True)
class _Job:
    rank: float
    number: int
    size: int = field(compare=False)
    work: Callable[[Tokenizer], Any] = field(compare=False)
    answer: asyncio.Future[Any] = field(compare=False)


class TokenizerPool:
    """Processes with the model's tokenizer: some for small bodies, and as many for large ones.

    Use it as an async context manager, within one event loop. It accepts work at once, though its processes take a
    second to start.

    Attributes:
        tokenizer: The same in this process, for work that takes no time: to spell tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._json = tokenizer.to_json()
        self._small: asyncio.PriorityQueue[_Job] = asyncio.PriorityQueue()
        self._large: asyncio.PriorityQueue[_Job] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for number in range(max(1, min(_MAX_PROCESSES, (os.cpu_count() or 1) // 2))):
            small, large = self._work(self._small, kills=False), self._work(self._large, kills=True)
            self._workers += [
                asyncio.create_task(small, name=f"small texts {number}"),
                asyncio.create_task(large, name=f"large texts {number}"),
            ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def small(self, work: Callable[[Tokenizer], Result], size: int) -> Result:
        """Run a job within `SMALL`. It goes on when its caller is cancelled: a new process would take longer.

        Args:
            work: A function that can be pickled, as can its result.
            size: Bytes of the body.

        Raises:
            EngineUnavailable: the process ended.
        """
        return await self._ask(self._small, work, size)

    async def large(self, work: Callable[[Tokenizer], Result], size: int) -> Result:
        """Run a job of any length, as `small` does; its process is killed when the caller is cancelled."""
        return await self._ask(self._large, work, size)

    async def _ask(self, jobs: asyncio.PriorityQueue[_Job], work: Callable[[Tokenizer], Result], size: int) -> Result:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        jobs.put_nowait(_Job(loop.time() + size * _HEAD_START_S, next(self._numbers), size, work, answer))
        return await answer

    async def _work(self, jobs: asyncio.PriorityQueue[_Job], *, kills: bool) -> None:
        """Run jobs, each in a process that may have run others; `kills` one when nobody waits for its job any more."""
        while True:
            try:
                process = await TokenizerProcess.start(self._json, renders=not kills)
            except (OSError, ProcessEnded) as error:
                logger.error("A tokenizer process could not be started: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                job = await _next(jobs)
                while await _do(job, process, kills=kills) and job.size <= _RENEWED_BYTES:
                    job = await _next(jobs)
            finally:
                await process.stop()


async def _next(jobs: asyncio.PriorityQueue[_Job]) -> _Job:
    """Return the next job that somebody is waiting for."""
    job = await jobs.get()
    while job.answer.done():
        job = await jobs.get()
    return job


async def _do(job: _Job, process: TokenizerProcess, *, kills: bool) -> bool:
    """Run a job; return whether the process can be used again."""
    running = asyncio.create_task(process.run(job.work), name="tokenizer job")
    try:
        await asyncio.wait((running, job.answer) if kills else (running,), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            return False
        error = running.exception()
        if isinstance(error, ProcessEnded):
            logger.warning("A tokenizer process ended while it worked on a request.")
            _fail(job, EngineUnavailable("A tokenizer process ended while it worked on this request."))
            return False
        if error is not None:
            _fail(job, error)
        elif not job.answer.done():
            job.answer.set_result(running.result())
        return True
    finally:
        running.cancel()
        await asyncio.wait((running,))
        _fail(job, EngineUnavailable("The server is stopping."))


def _fail(job: _Job, error: BaseException) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)
        job.answer.exception()  # mark it as retrieved, in case the caller is cancelled at this moment
