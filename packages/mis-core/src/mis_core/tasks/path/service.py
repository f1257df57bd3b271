"""The path of every request: parse, submit, finish.

A `Service` takes requests of any `Task` along the path and says where each part runs: `InlineService` and
`ThreadedService` with an engine in this process; the HTTP server has its own. A new kind of request is a new task,
not a new path.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mis_core.calibration import Calibrations
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ParsedType, Result, Task
from mis_core.tokenization import Tokenizer

Queue = Callable[[ScoreRequest], Future[EngineOutput]]
"""Queues a request in an engine; cancelling the future frees what it holds."""

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True, eq=False)
class Answered(Generic[ParsedType, Result]):
    """A request at the end of its path.

    Attributes:
        parsed: What the task has made of its fields.
        outputs: The engine's, one for each of the parsed `requests`.
        result: The result.
        timings_ms: Milliseconds by stage: `tokenize`, `queue` (until the first step has room), `plan` (host time for
            layouts), `device` (from the first step to the last value), `finish`.
        is_mismatched: Whether the model's calibrations are of another one.
    """

    parsed: ParsedType
    outputs: tuple[EngineOutput, ...]
    result: Result
    timings_ms: dict[str, float]
    is_mismatched: bool = False


class Service(ABC, Generic[Source]):
    """Takes requests along the path. Subclasses say where each part of it runs.

    Attributes:
        calibrations: What results are calibrated by; None: nothing.
    """

    calibrations: Calibrations | None = None

    async def answer(
        self,
        task: Task[ParsedType, Result],
        source: Source,
        admit: Callable[[ParsedType], None] | None = None,
    ) -> Answered[ParsedType, Result]:
        """Parse a request, have the engine compute it, and return it with its result.

        Args:
            task: The kind of request.
            source: Its fields, or what they are read from.
            admit: Called with the parsed request; raises if there is no room for it now.

        Raises:
            RequestError: the request breaks the contract, or was not admitted; nothing was computed.
            EngineUnavailable: the engine cannot answer now, or lost this request.
        """
        began = time.perf_counter()
        parsed = await self.parse(task, source)
        tokenize_ms = (time.perf_counter() - began) * 1e3
        if admit is not None:
            admit(parsed)
        outputs = await self.submit(parsed.requests)
        for output in outputs:
            output.timings_ms["tokenize"] = tokenize_ms
        computed_at = time.perf_counter()
        result = await self.finish(task, parsed, outputs)
        stages = outputs[0].timings_ms if outputs else {"tokenize": tokenize_ms}
        slowest = {name: max((output.timings_ms[name] for output in outputs), default=stages[name]) for name in stages}
        timings_ms = slowest | {"finish": (time.perf_counter() - computed_at) * 1e3}
        mismatched = self.calibrations is not None and bool(self.calibrations.mismatch)
        return Answered(parsed, outputs, result, timings_ms, mismatched)

    @abstractmethod
    async def parse(self, task: Task[ParsedType, Any], source: Source) -> ParsedType:
        """Validate and tokenise a request."""

    @abstractmethod
    async def submit(self, requests: tuple[ScoreRequest, ...]) -> tuple[EngineOutput, ...]:
        """Have the engine compute requests; cancelling the caller frees the engine's work."""

    @abstractmethod
    async def finish(
        self, task: Task[ParsedType, Result], parsed: ParsedType, outputs: tuple[EngineOutput, ...]
    ) -> Result:
        """Turn the engine's outputs into the result."""


class InlineService(Service[Fields]):
    """The path to an engine in this process; every part runs, and blocks, where `run_blocking` is called."""

    def __init__(
        self,
        queue: Queue,
        limits: Limits,
        tokenizer: Callable[[], Tokenizer],
        calibrations: Calibrations | None = None,
    ) -> None:
        self._queue = queue
        self._limits = limits
        self._tokenizer = tokenizer  # called for requests with text only
        self.calibrations = calibrations

    async def parse(self, task: Task[ParsedType, Any], source: Fields) -> ParsedType:
        """Validate and tokenise a request."""
        return await self._run(self._parse, task, source)

    async def submit(self, requests: tuple[ScoreRequest, ...]) -> tuple[EngineOutput, ...]:
        """Queue requests and block until they are computed."""
        futures = [self._queue(request) for request in requests]
        try:
            return tuple(future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()  # interrupted, or one has failed: nobody waits for the rest any more
            raise

    async def finish(
        self, task: Task[ParsedType, Result], parsed: ParsedType, outputs: tuple[EngineOutput, ...]
    ) -> Result:
        """Turn the engine's outputs into the result."""
        return await self._run(task.finish, parsed, outputs, self.calibrations)

    def _parse(self, task: Task[ParsedType, Any], fields: Fields) -> ParsedType:
        return task.read(fields, self._tokenizer() if task.has_text(fields) else None, self._limits, None)

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return work(*arguments)


class ThreadedService(InlineService):
    """The same for asyncio: work is done in threads, and the event loop stays free."""

    async def submit(self, requests: tuple[ScoreRequest, ...]) -> tuple[EngineOutput, ...]:
        """Queue requests and wait until they are computed."""
        return await all_or_none([asyncio.wrap_future(self._queue(request)) for request in requests])

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.to_thread(work, *arguments)


async def all_or_none(outputs: list[Awaitable[EngineOutput]]) -> tuple[EngineOutput, ...]:
    """Wait for several outputs; if one fails, or the caller is cancelled, cancel the others."""
    waiting = [asyncio.ensure_future(output) for output in outputs]
    try:
        return tuple(await asyncio.gather(*waiting))
    finally:
        for each in waiting:
            each.cancel()


def run_blocking(answer: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine of an `InlineService` without an event loop: it never suspends, so its first step is its last."""
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("An inline service has suspended.")
