"""A served model: its engine process and its tokenizers, which serve every task. Knows no HTTP.

`mis-server serve`, `mis-server score` and the actors of Ray each have one.
"""

import asyncio
import contextlib
import dataclasses
import marshal
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from mis_core.calibration.loading import checked, read_calibrations
from mis_core.config import NO_CALIBRATION, EngineConfig
from mis_core.errors import EngineUnavailable
from mis_core.hub import resolve
from mis_core.process.client import EngineClient
from mis_core.process.wire import Ready
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.service import Service
from mis_core.tasks.path.task import Fields, ParsedType, Task
from mis_core.tasks.recipes.recognition import describe_rerank, rerank_recipe
from mis_core.tasks.served import check_task, tasks_of
from mis_core.tokenization import Tokenizer, TooMuchWork
from mis_server.tokenizers.decoding import decode_body, packed, parse_text
from mis_server.tokenizers.pool import SMALL, TokenizerPool
from mis_server.tokenizers.rendering import TakesLong

_INLINE_VALUES = 32_768  # computed or encoded in little more time than it takes to wake a thread
_AMPLIFIED = 16  # a small body may cost the tokenizer so much for each of its bytes, as `Meter` counts it,
_LEAST = 16_384  # or this much if that is more: 65 ms for the worst text

OBJECT_VALUES = 8
"""For `in_thread_if_large`: an object of a reply, or the text of a token, takes as long as this many numbers."""

NOTHING_SAID: Mapping[str, int] = MappingProxyType({})
"""Limits with all defaults."""

AT_A_TIME = 16
"""Requests that one caller has in the engine; together they fill a step."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Model(Service[bytes | Fields]):
    """A model with all its tasks. The source of a request is a body of JSON, or its fields as Python has them.

    Attributes:
        client: The engine process.
        tokenizers: Where texts become tokens.
        config: The engine's options, with local files only.
    """

    def __init__(
        self,
        config: EngineConfig,
        client: EngineClient,
        tokenizers: TokenizerPool,
        *,
        names: tuple[str, ...] | None = None,
        limits: Mapping[str, int] = NOTHING_SAID,
        identified: bool = False,
    ) -> None:
        """Take what `running_model` starts, and closes.

        Args:
            config: The engine's options; names local files only.
            client: The engine process.
            tokenizers: Where texts become tokens.
            names: What requests may call the model, besides what clients of a task call it by default; None: whatever
                they like.
            limits: Fields of `Limits` that are not to be its defaults.
            identified: Whether requests say what calibrations they may have, though none is loaded.
        """
        self.client = client
        self.tokenizers = tokenizers
        self.config = config
        self._calibrates = config.calibration_path is not None
        self._identified = identified
        self._names = names
        self._given_limits = limits
        self._served: tuple[Ready, Limits, tuple[str, ...]] | None = None

    async def wait_ready(self) -> Ready:
        """Wait until all of it is ready for the first time; return what the engine says about its model.

        Raises:
            ConfigError: the calibration cannot be used, or belongs to another model.
            ModelError: the model cannot be served as it stands.
            EngineUnavailable: the engine, or the tokenizer processes, could not start.
        """
        reading = asyncio.to_thread(read_calibrations, self.config)
        info, _, read = await asyncio.gather(self.client.wait_ready(), self.tokenizers.compiled(), reading)
        if read is not None:
            made_of = info.parts, str(info.summary["dtype"]), self.tokenizers.tokenizer.digest
            self.calibrations = await asyncio.to_thread(checked, read, self.config, *made_of)
        return info

    @property
    def ready(self) -> bool:
        """Whether requests can be answered now."""
        return self.client.ready and self._calibrates == (self.calibrations is not None)

    async def parse(self, task: Task[ParsedType, Any], source: bytes | Fields) -> ParsedType:
        """Validate a request: here if it is small or fields and has no text, else in a process that can be killed.

        Raises:
            RequestError: the request breaks the contract.
            EngineUnavailable: the engine was never ready.
        """
        limits = self.limits
        names = None if self._names is None else (*self._names, *task.model_names)
        there = partial(parse_text, task, limits, names)
        if not isinstance(source, bytes):
            if not task.has_text(source):
                return await asyncio.to_thread(task.parse, source, None, limits, names)
            data = packed(source)
            return await self.tokenizers.large(partial(there, marshal.loads, data, None), len(data))
        if len(source) > SMALL:
            return await self.tokenizers.large(partial(there, decode_body, source, None), len(source))
        fields = decode_body(source)
        if not task.has_text(fields):
            return await in_thread_if_large(len(source), task.parse, fields, None, limits, names)
        data = packed(fields, source)
        # A short text that is tokenised again with each of many items is a long job, too.
        most = min(max(_AMPLIFIED * len(source), _LEAST), SMALL)
        with contextlib.suppress(TooMuchWork, TakesLong):
            return await self.tokenizers.small(partial(there, marshal.loads, data, most), len(source))
        return await self.tokenizers.large(partial(there, marshal.loads, data, None), len(source))

    async def submit(self, requests: tuple[ScoreRequest, ...]) -> tuple[EngineOutput, ...]:
        """Have the engine process compute requests, some at a time, so that it schedules all callers fairly."""
        if len(requests) == 1:
            return (await self.client.score(requests[0]),)
        return tuple(await some_at_a_time(self.client.score, requests))

    async def finish(
        self, task: Task[ParsedType, Result], parsed: ParsedType, outputs: tuple[EngineOutput, ...]
    ) -> Result:
        """Turn the engine's outputs into the result."""
        values = sum(output.logits.size for output in outputs)
        return await in_thread_if_large(values, task.finish, parsed, outputs, self.calibrations)

    def check(self, task: Task[Any, Any]) -> None:
        """Refuse a request that cannot be answered now, whatever it asks.

        Raises:
            EngineUnavailable: the engine cannot answer now.
            RequestError: the model does not have this task.
        """
        if not self.ready:
            raise EngineUnavailable("The engine is not ready.")
        if task.name not in self.tasks:
            check_task(task.name, self.tokenizers.tokenizer, self.limits)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that the model has; none until the engine is ready."""
        return () if self.client.info is None else self._known()[1]

    @property
    def recipe(self) -> str | None:
        """Name of the recipe that rerank takes; None if the model has no such task, or the engine is not ready."""
        return rerank_recipe(self.tokenizers.tokenizer, self.limits).name if "rerank" in self.tasks else None

    @property
    def described_rerank(self) -> str:
        """A line for the log: the recipe of rerank, or why there is none. Raises until the engine is ready."""
        return describe_rerank(self.tokenizers.tokenizer, self.limits)

    @property
    def limits(self) -> Limits:
        """What one request may ask for; raises EngineUnavailable until the engine is ready."""
        return self._known()[0]

    def _known(self) -> tuple[Limits, tuple[str, ...]]:
        """Return what the model allows and which tasks it has, made once for each start of the engine."""
        info, config = self.client.info, self.config
        if info is None:
            raise EngineUnavailable("The engine is not ready.")
        if self._served is None or self._served[0] is not info:
            limits = Limits(
                context_length=info.context_length,
                vocab_size=info.vocab_size,
                delimiter=config.multi_item_scoring_delimiter,
                layouts=config.enable_request_layout,
                head_labels=info.head_labels,
                head_activation=info.head_activation,
                architecture=info.architecture,
                only_task=info.only_task,
                signs=info.signs,
                choice_order=config.choice_order,
                rerank_recipe=config.rerank_recipe,
                identified=self._identified or self._calibrates,
                **self._given_limits,
            )
            self._served = info, limits, tasks_of(self.tokenizers.tokenizer, limits)
        return self._served[1:]


@contextlib.asynccontextmanager
async def running_model(
    config: EngineConfig,
    *,
    names: tuple[str, ...] | None = None,
    limits: Mapping[str, int] = NOTHING_SAID,
    identified: bool = False,
) -> AsyncIterator[Model]:
    """Start a model, and end its processes on exit. It starts in the background: see `Model.wait_ready`.

    Args:
        config: The engine's options.
        names: As of `Model`.
        limits: As of `Model`.
        identified: As of `Model`.

    Raises:
        ConfigError, ModelError: the model or its tokenizer cannot be served as it stands.
    """
    local = await asyncio.to_thread(resolve, config)
    # Results are made in this process, where the calibration is.
    async with EngineClient(dataclasses.replace(local, calibration=NO_CALIBRATION)) as client:
        tokenizer = await asyncio.to_thread(Tokenizer.of, local)  # while the engine starts
        async with TokenizerPool(tokenizer) as tokenizers:
            yield Model(local, client, tokenizers, names=names, limits=limits, identified=identified)


async def in_thread_if_large(values: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that computes or encodes that many values; in a thread if it would hold up the event loop."""
    if values <= _INLINE_VALUES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


async def some_at_a_time(work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    """Do work for each item, `AT_A_TIME` at once; each item is made when its turn comes. Return results in order.

    If one fails, or the caller is cancelled, the others end.
    """
    numbered = enumerate(items)
    results: dict[int, Result] = {}

    async def do() -> None:
        for index, item in numbered:
            results[index] = await work(item)

    workers = [asyncio.create_task(do()) for _ in range(AT_A_TIME)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[index] for index in range(len(results))]


async def in_order(
    work: Callable[[Item], Awaitable[Result]], items: Iterable[Item], most: int = AT_A_TIME
) -> AsyncGenerator[Result]:
    """Yield what work returns for each item, in order and as soon as it is there; close it by `contextlib.aclosing`.

    At most `most` results are under way or not read yet, so a slow reader holds up the work. If one
    fails, or the caller is cancelled or closes this, the others end.
    """
    begun: deque[asyncio.Future[Result]] = deque()
    try:
        for item in items:
            if len(begun) == most:
                yield await begun.popleft()
            begun.append(asyncio.ensure_future(work(item)))
        while begun:
            yield await begun.popleft()
    finally:
        for each in begun:
            each.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
