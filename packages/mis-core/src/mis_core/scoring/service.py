"""The path of every request: parse, submit, finish.

A `Task` is one kind of request: how its fields become what the engine computes, and how the engine's answer becomes
its result. A `Service` takes requests of any task along the path and says where each part runs: `InlineService` and
`ThreadedService` with an engine in this process; the HTTP server has its own. A new kind of request is a new task,
not a new path.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mis_core.scoring.limits import Limits
from mis_core.scoring.request import EngineOutput, ScoreRequest, ScoreResult
from mis_core.scoring.scores import finish
from mis_core.scoring.validation import parse_score_request
from mis_core.tokenization import Tokenizer

Fields = Mapping[str, object]
Queue = Callable[[ScoreRequest], Future[EngineOutput]]
"""Queues a request in an engine; cancelling the future frees what it holds."""

Source = TypeVar("Source")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """One kind of request. Its functions are pure and can be pickled, so that they may run anywhere.

    Attributes:
        has_text: Whether these fields need a tokenizer.
        parse: Validates fields and tokenises their texts; the last argument are the model names that requests may
            give, None for any. Raises `RequestError`.
        finish: Turns the engine's answer into the result.
    """

    has_text: Callable[[Fields], bool]
    parse: Callable[[Fields, Tokenizer | None, Limits, tuple[str, ...] | None], ScoreRequest]
    finish: Callable[[ScoreRequest, EngineOutput], Result]


def _score_has_text(fields: Fields) -> bool:
    return isinstance(fields.get("query"), str) or fields.get("labels") is not None


SCORE: Task[ScoreResult] = Task(_score_has_text, parse_score_request, finish)


class Service(ABC, Generic[Source]):
    """Takes requests along the path. Subclasses say where each part of it runs."""

    async def answer(
        self, task: Task[Result], source: Source, admit: Callable[[ScoreRequest], None] | None = None
    ) -> tuple[ScoreRequest, Result]:
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
        request = await self.parse(task, source)
        tokenize_ms = (time.perf_counter() - began) * 1e3
        if admit is not None:
            admit(request)
        logits = await self.submit(request)
        logits.timings_ms["tokenize"] = tokenize_ms
        return request, await self.finish(task, request, logits)

    @abstractmethod
    async def parse(self, task: Task[Any], source: Source) -> ScoreRequest:
        """Validate and tokenise a request."""

    @abstractmethod
    async def submit(self, request: ScoreRequest) -> EngineOutput:
        """Have the engine compute a request; cancelling the caller frees the engine's work."""

    @abstractmethod
    async def finish(self, task: Task[Result], request: ScoreRequest, logits: EngineOutput) -> Result:
        """Turn the engine's answer into the result."""


class InlineService(Service[Fields]):
    """The path to an engine in this process; every part runs, and blocks, where `run_blocking` is called."""

    def __init__(self, queue: Queue, limits: Limits, tokenizer: Callable[[], Tokenizer]) -> None:
        self._queue = queue
        self._limits = limits
        self._tokenizer = tokenizer  # called for requests with text only

    async def parse(self, task: Task[Any], source: Fields) -> ScoreRequest:
        """Validate and tokenise a request."""
        return await self._run(self._parse, task, source)

    async def submit(self, request: ScoreRequest) -> EngineOutput:
        """Queue a request and block until it is computed."""
        future = self._queue(request)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: nobody waits any more
            raise

    async def finish(self, task: Task[Result], request: ScoreRequest, logits: EngineOutput) -> Result:
        """Turn the engine's answer into the result."""
        return await self._run(task.finish, request, logits)

    def _parse(self, task: Task[Any], fields: Fields) -> ScoreRequest:
        return task.parse(fields, self._tokenizer() if task.has_text(fields) else None, self._limits, None)

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return work(*arguments)


class ThreadedService(InlineService):
    """The same for asyncio: work is done in threads, and the event loop stays free."""

    async def submit(self, request: ScoreRequest) -> EngineOutput:
        """Queue a request and wait until it is computed."""
        return await asyncio.wrap_future(self._queue(request))

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.to_thread(work, *arguments)


def run_blocking(answer: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine of an `InlineService` without an event loop: it never suspends, so its first step is its last."""
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("An inline service has suspended.")
