"""Processes in which texts become tokens: no text holds up the event loop, and abandoned work is killed."""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from mis_core.errors import EngineUnavailable, ModelError
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers.process import ProcessEnded, TokenizerProcess
from mis_server.tokenizers.rendering import Faults

logger = logging.getLogger(__name__)

SMALL = 131_072
"""Bytes of a small body, and what tokenising it may cost, as `Meter` counts it: half a second for the worst text."""

_MAX_PROCESSES = 4  # of each kind; each holds the vocabulary
_HEAD_START_S = 1e-4  # for each byte that another body is longer; about thirty times what the worst text takes
_RENEWED_BYTES = 4 * 1024 * 1024  # after a larger body, a process keeps memory that the next body does not need
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0
_ENOUGH_FAILURES = 3  # starts in a row, after which nobody is kept waiting for another
_UNAVAILABLE = "The processes that tokenise texts cannot be started; the server's log says why."
_SMALL_CPU_S = 2.0  # a small job that computes longer, for whatever reason, is a large one after all
_LOOK_S = 0.1  # between looks at that

Result = TypeVar("Result")


class TokenizersUnavailable(EngineUnavailable):
    """The processes that tokenise texts cannot be started; its message is for clients."""


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
        failures: How often processes could not be started since one could.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._json = tokenizer.to_json()
        self._small: asyncio.PriorityQueue[_Job] = asyncio.PriorityQueue()
        self._large: asyncio.PriorityQueue[_Job] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._workers: list[asyncio.Task[None]] = []
        self._compiled: asyncio.Future[None] | None = None
        self.failures = 0

    async def __aenter__(self) -> Self:
        self._compiled = asyncio.get_running_loop().create_future()
        for number in range(max(1, min(_MAX_PROCESSES, (os.cpu_count() or 1) // 2))):
            self._workers += [
                asyncio.create_task(self._work(self._small), name=f"small texts {number}"),
                asyncio.create_task(self._work(self._large), name=f"large texts {number}"),
            ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether the templates have been compiled, or refused."""
        return self._compiled is not None and self._compiled.done()

    async def compiled(self) -> None:
        """Wait until the templates are compiled; `tokenizer` then knows what is wrong with the model's own.

        Raises:
            ModelError: the template of an option cannot be compiled.
            EngineUnavailable: tokenizer processes cannot be started.
        """
        assert self._compiled is not None, "entered"
        await asyncio.shield(self._compiled)

    def check(self) -> None:
        """Refuse work that nobody can do.

        Raises:
            TokenizersUnavailable: processes could not be started for a while.
        """
        if self.failures >= _ENOUGH_FAILURES:
            raise TokenizersUnavailable(_UNAVAILABLE)

    async def small(self, work: Callable[[Tokenizer], Result], size: int) -> Result:
        """Run a job within `SMALL`. It goes on when its caller is cancelled: a new process would take longer.

        But no job keeps the lane: one that takes longer than it may cost is begun again as a large one, if anybody
        still waits for it.

        Args:
            work: A function that can be pickled, as can its result; it may be called again.
            size: Bytes of the body.

        Raises:
            EngineUnavailable: the process ended.
            RequestError: `tokenizer_failed`; it takes more time or memory than any job may.
            TakesLong: it renders a template that takes long.
        """
        return await self._ask(self._small, work, size)

    async def large(self, work: Callable[[Tokenizer], Result], size: int) -> Result:
        """Run a job of any length, as `small` does; its process is killed when the caller is cancelled."""
        return await self._ask(self._large, work, size)

    async def _ask(self, jobs: asyncio.PriorityQueue[_Job], work: Callable[[Tokenizer], Result], size: int) -> Result:
        self.check()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        jobs.put_nowait(_Job(loop.time() + size * _HEAD_START_S, next(self._numbers), size, work, answer))
        try:
            return await answer
        finally:
            del answer  # an error in it holds this frame

    async def _work(self, jobs: asyncio.PriorityQueue[_Job]) -> None:
        """Run jobs of one kind, each in a process that may have run others."""
        do, renders = (self._do_small, True) if jobs is self._small else (_do_large, False)
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                process = await TokenizerProcess.start(self._json, renders=renders)
            except Exception as error:  # whatever it is, the lane must not end
                self._count_failure(error)
                logger.error("Trying again in %g s.", retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            self.failures = 0
            try:
                self._learn(process.faults)
                while await _do_next(jobs, do, process):
                    pass
            finally:
                await process.stop()

    async def _do_small(self, job: _Job, process: TokenizerProcess) -> bool:
        """Run a job; return whether the process can be used again."""
        async with _running(job, process, is_brief=True) as running:
            ends_s = process.cpu_s() + _SMALL_CPU_S
            while not running.done() and process.cpu_s() < ends_s:
                await asyncio.wait((running,), timeout=_LOOK_S)
            if running.done():
                return _finish(job, running) and not process.has_ended
            if not job.answer.done():
                logger.warning("Tokenising a small body took %g s; it is begun again as a large one.", _SMALL_CPU_S)
                self._large.put_nowait(job)
            return False

    def _learn(self, faults: Faults | None) -> None:
        """Take over what a process found out about the templates, once."""
        assert self._compiled is not None
        if faults is None or self._compiled.done():
            return
        try:
            self.tokenizer = self.tokenizer.with_faults(*faults)
        except ModelError as error:
            _refuse(self._compiled, error)
            return
        self._compiled.set_result(None)
        if faults[0] is not None:
            logger.warning("The model's chat template cannot be compiled: %s Its tasks are not served.", faults[0])

    def _count_failure(self, error: Exception) -> None:
        """Count a start that failed; after some, fail who waits."""
        self.failures += 1
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        logger.error("A tokenizer process could not be started: %s.", reason)
        if self.failures < _ENOUGH_FAILURES:
            return
        if self._compiled is not None and not self._compiled.done():
            _refuse(self._compiled, TokenizersUnavailable(_UNAVAILABLE))
        for jobs in (self._small, self._large):
            while not jobs.empty():
                _fail(jobs.get_nowait(), TokenizersUnavailable(_UNAVAILABLE))


async def _do_next(
    jobs: asyncio.PriorityQueue[_Job],
    do: Callable[[_Job, TokenizerProcess], Awaitable[bool]],
    process: TokenizerProcess,
) -> bool:
    """Do the next job, if somebody is waiting for it; return whether the process can be used again.

    Nothing is held of a job when it is done: its body may be large, and the next one hours away.
    """
    job = await jobs.get()
    return job.answer.done() or (await do(job, process) and job.size <= _RENEWED_BYTES)


async def _do_large(job: _Job, process: TokenizerProcess) -> bool:
    """Run a job until it is done or nobody waits for it any more; return whether the process can be used again."""
    async with _running(job, process, is_brief=False) as running:
        await asyncio.wait((running, job.answer), return_when=asyncio.FIRST_COMPLETED)
        return running.done() and _finish(job, running) and not process.has_ended


@contextlib.asynccontextmanager
async def _running(job: _Job, process: TokenizerProcess, *, is_brief: bool) -> AsyncIterator[asyncio.Task[Any]]:
    """Surround the wait for a job; one that is cancelled with the pool fails."""
    running = asyncio.create_task(process.run(job.work, job.size, is_brief=is_brief), name="tokenizer job")
    try:
        yield running
    except asyncio.CancelledError:
        _fail(job, EngineUnavailable("The server is stopping."))
        raise
    finally:
        running.cancel()
        await asyncio.wait((running,))


def _finish(job: _Job, running: asyncio.Task[Any]) -> bool:
    """Answer a job that is done; return whether its process can be used again."""
    error = running.exception()
    if isinstance(error, ProcessEnded):
        logger.warning("A tokenizer process ended while it worked on a request%s.", error.described)
        _fail(job, EngineUnavailable("A tokenizer process ended while it worked on this request."))
        return False
    if error is not None:
        _fail(job, error)
    elif not job.answer.done():
        job.answer.set_result(running.result())
    return True


def _fail(job: _Job, error: BaseException) -> None:
    if not job.answer.done():
        _refuse(job.answer, error)


def _refuse(answer: asyncio.Future[Any], error: BaseException) -> None:
    answer.set_exception(error)
    answer.exception()  # mark it as retrieved, in case nobody waits at this moment
