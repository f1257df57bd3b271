"""Texts become tokens in processes of their own: none holds up the event loop, and what nobody waits for ends."""

import asyncio
import heapq
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from mis_core.errors import EngineUnavailable
from mis_core.tokenization import Tokenizer
from mis_server.tokenizer_worker import start

logger = logging.getLogger(__name__)

SMALL = 131_072
"""Bytes of a small body, and characters that tokenising it may read: half a second of the worst text."""

_MOST_PROCESSES = 4  # of each kind; every one holds the vocabulary
_HEAD_START_S = 1e-4  # for each byte that another body is longer; some thirty times what the worst text takes

Result = TypeVar("Result")


class TokenizerPool:
    """Processes with the model's tokenizer: some for small bodies, as many for large ones.

    Use it as a context manager around the event loop's work. The processes start when they are needed, or at `warm`,
    and end with the loop.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._count = max(1, min(_MOST_PROCESSES, (os.cpu_count() or 1) // 2))
        self._small, self._large = _Turns(self._count), _Turns(self._count)
        self._limiter = CapacityLimiter(2 * self._count)
        self._jobs: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="mis-tokenizer-")
        self._path = Path(self._folder.name, "tokenizer.json")
        self._tokenizer.save(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    async def warm(self) -> None:
        """Start every process, and let it read the vocabulary."""
        every = [self.small(start, 0) for _ in range(self._count)] + [self.large(start, 0) for _ in range(self._count)]
        await asyncio.gather(*every)

    async def small(self, work: Callable[[Path], Result], size: int) -> Result:
        """Do work that `SMALL` bounds. It goes on when its caller is cancelled: a new process would take longer.

        Args:
            work: A function that can be pickled, called with the path of the tokenizer.
            size: Bytes of the body.

        Raises:
            EngineUnavailable: the process was ended from outside.
        """
        await self._small.take(size)
        return await asyncio.shield(self._begin(self._small, work))

    async def large(self, work: Callable[[Path], Result], size: int) -> Result:
        """Do work of any size, as `small` does. Its process is killed when the caller is cancelled."""
        await self._large.take(size)
        return await self._begin(self._large, work)

    def _begin(self, turns: "_Turns", work: Callable[[Path], Result]) -> asyncio.Task[Result]:
        job = asyncio.create_task(self._run(work), name="tokenizer job")
        self._jobs.add(job)  # or nothing would hold on to one whose caller is gone
        job.add_done_callback(self._jobs.discard)
        job.add_done_callback(lambda _: turns.give_back())
        return job

    async def _run(self, work: Callable[[Path], Result]) -> Result:
        try:
            return await to_process.run_sync(work, self._path, cancellable=True, limiter=self._limiter)
        except BrokenWorkerProcess as error:
            logger.warning("A tokenizer process ended while it worked on a request: %s", error.__cause__)
            raise EngineUnavailable("A tokenizer process ended while it worked on this request.") from None


class _Turns:
    """Lets in so many at a time, small ones before large ones that have not waited much longer."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def take(self, size: int) -> None:
        """Wait for a turn, to be given back."""
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (loop.time() + size * _HEAD_START_S, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # given in the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Let in the next that still waits."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
