"""What the routes share: one served model, and the path of every request with a body to its engine process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from mis_core.errors import EngineUnavailable
from mis_core.process.client import EngineClient
from mis_core.requests import EngineOutput, NewToken, ScoreRequest
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.service import Answered, Service, all_or_none
from mis_core.tasks.path.task import Parsed, ParsedType, Task
from mis_core.tasks.recipes.recognition import describe_rerank, rerank_recipe
from mis_core.tasks.served import check_task, tasks_of
from mis_core.tasks.text.writing import Drawn, ParsedText, Writing
from mis_core.tokenization import TooMuchWork
from mis_server.answering import Answering, write_all
from mis_server.edge.admission import Admission, Permit
from mis_server.edge.body import announced_bytes, read_json_body
from mis_server.edge.body_bytes import BodyBytes
from mis_server.edge.deadline import deadline, requested_seconds
from mis_server.errors import error_body, forget_frames
from mis_server.settings import ServerConfig
from mis_server.telemetry.metrics import Metrics, WritingClock
from mis_server.tokenizers.decoding import decode_body, parse_body, parse_within
from mis_server.tokenizers.pool import SMALL, TokenizerPool
from mis_server.tokenizers.rendering import TakesLong

_INLINE_VALUES = 32_768  # computed or encoded in little more time than it takes to wake a thread
_AMPLIFIED = 16  # a small body may cost the tokenizer so much for each of its bytes, as `Meter` counts it,
_LEAST = 16_384  # or this much if that is more: 65 ms for the worst text
_AT_A_TIME = 16  # engine requests of one body; together they fill a step
_STATISTICS_S = 2.0

Result = TypeVar("Result")
TextType = TypeVar("TextType", bound=ParsedText)
DrawnType = TypeVar("DrawnType", bound=Drawn)


class ModelService(Service[bytes]):
    """One served model. The source of a request is its body."""

    def __init__(self, client: EngineClient, settings: ServerConfig, tokenizers: TokenizerPool) -> None:
        self.client = client
        self.settings = settings
        self.tokenizers = tokenizers
        self.admission = Admission(
            settings.max_queued_requests, settings.max_queued_tokens, settings.max_queued_sequences
        )
        self.bodies = BodyBytes(settings.max_body_bytes_under_way, settings.max_body_bytes)
        self.metrics = Metrics()
        self._statistics: dict[str, float] = {}

    async def handle(self, task: Task[ParsedType, Result], request: Request) -> Answered[ParsedType, Result]:
        """Answer an HTTP request of the given task.

        Raises:
            RequestError: the model does not have this task, the request breaks the contract, there is no room for it,
                or its deadline passed.
            EngineUnavailable: the engine cannot answer now, or ended before it answered.
            ClientDisconnect: the client is gone.
        """
        self._check(task)

        async def work(body: bytes, permit: Permit) -> Answered[ParsedType, Result]:
            began = time.perf_counter()
            answered = await self.answer(task, body, lambda parsed: permit.allocate(_prompt_tokens(parsed)))
            self.metrics.answered(task.name, answered, time.perf_counter() - began)
            return answered

        return await self.with_body(request, work)

    async def write(self, task: Task[TextType, DrawnType], request: Request) -> Answering[TextType, DrawnType]:
        """Begin to answer an HTTP request with text; return when what is scored is there and the rest is on its way.

        The deadline and the permit are those of the whole answer, until it is handed to the client.

        Raises:
            RequestError, EngineUnavailable, ClientDisconnect: as `handle`.
        """
        self._check(task)

        async def answer(answering: Answering[TextType, DrawnType]) -> None:
            async def work(body: bytes, permit: Permit) -> None:
                clock = WritingClock(self.metrics)
                answered = await self.answer(task, body, lambda parsed: permit.allocate(*_written(parsed)))
                await self._write(answered, answering, clock)
                self.metrics.answered(task.name, answered, clock.seconds)
                sequences = answered.parsed.sequences
                for index, cached in enumerate(answering.writing.cached_tokens if sequences else ()):
                    self.metrics.prompted(int(sequences.prompts.lens[index // sequences.draws]), cached)

            await self.with_body(request, work)

        return await Answering[TextType, DrawnType].start(answer)

    async def _write(
        self,
        answered: Answered[TextType, DrawnType],
        answering: Answering[TextType, DrawnType],
        clock: WritingClock,
    ) -> None:
        parsed, drawn = answered.parsed, answered.result.tokens
        writing = Writing(self.tokenizers.tokenizer, parsed.stops, len(parsed.sequences) or len(drawn))
        answering.begin(answered, writing)

        def tell(index: int, token: NewToken) -> bool:
            clock.wrote(index)
            chunk = writing.add(index, token)
            if chunk is not None:
                answering.tell(chunk)
            return chunk is not None and chunk.finish_reason is None

        for index, token in enumerate(drawn):
            await answering.room()
            tell(index, token)
        await write_all(self.client.generate, parsed.sequences, tell, answering.room)

    def _check(self, task: Task[Any, Any]) -> None:
        if not self.client.ready:
            raise EngineUnavailable("The engine is not ready.")
        check_task(task.name, self.tokenizers.tokenizer, self._limits())

    async def with_body(self, request: Request, work: Callable[[bytes, Permit], Awaitable[Result]]) -> Result:
        """Read the body of an HTTP request and call `work` with it and a permit, all within the deadline.

        Raises:
            RequestError: `invalid_request_timeout`, `unsupported_media_type`, `request_timeout`, `queue_full`,
                `deadline_exceeded`, or what `work` raises.
            ClientDisconnect: the client is gone.
        """
        seconds = requested_seconds(request, self.settings.request_timeout)
        async with deadline(request, seconds, self.settings.body_timeout) as body_arrived:
            announced = announced_bytes(request.headers, self.settings.max_body_bytes)
            with self.bodies.room(announced) as room:
                with self.admission.body():
                    body = await read_json_body(request, room)
                body_arrived()
                with self.admission.permit() as permit:
                    return await work(body, permit)

    async def parse(self, task: Task[ParsedType, Any], source: bytes) -> ParsedType:
        """Validate a body: here if it is small and has no text, else in a tokenizer process, which can be killed.

        Raises:
            RequestError: the request breaks the contract.
            EngineUnavailable: the engine was never ready.
        """
        limits, models = self._limits(), (self.settings.model_name,)
        if len(source) <= SMALL:
            fields = decode_body(source)
            if not task.has_text(fields):
                return await in_thread_if_large(len(source), task.parse, fields, None, limits, models)
            # A short text that is tokenised again with each of many items is a long job, too.
            most = min(max(_AMPLIFIED * len(source), _LEAST), SMALL)
            work = partial(parse_within, task, source, limits, models, most)
            with contextlib.suppress(TooMuchWork, TakesLong):
                return await self.tokenizers.small(work, len(source))
        return await self.tokenizers.large(partial(parse_body, task, source, limits, models), len(source))

    async def submit(self, requests: tuple[ScoreRequest, ...]) -> tuple[EngineOutput, ...]:
        """Have the engine process compute requests, some at a time: the engine gives everybody's the same turns."""
        if len(requests) == 1:
            return (await self.client.score(requests[0]),)
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def compute(request: ScoreRequest) -> EngineOutput:
            async with turns:
                return await self.client.score(request)

        return await all_or_none([compute(request) for request in requests])

    async def finish(
        self, task: Task[ParsedType, Result], parsed: ParsedType, outputs: tuple[EngineOutput, ...]
    ) -> Result:
        """Turn the engine's outputs into the result."""
        return await in_thread_if_large(sum(output.logits.size for output in outputs), task.finish, parsed, outputs)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that the served model has; none until the engine is ready."""
        return () if self.client.info is None else tasks_of(self.tokenizers.tokenizer, self._limits())

    @property
    def recipe(self) -> str | None:
        """Name of the recipe that rerank takes; None if the model has no such task, or the engine is not ready."""
        if "rerank" not in self.tasks:
            return None
        return rerank_recipe(self.tokenizers.tokenizer, self._limits()).name

    @property
    def described_rerank(self) -> str:
        """A line for the log: the recipe of rerank, or why there is none. Raises until the engine is ready."""
        return describe_rerank(self.tokenizers.tokenizer, self._limits())

    @property
    def requests_waiting(self) -> int:
        """Number of requests whose bodies have arrived but which are not in the engine."""
        return max(self.admission.requests - self.client.in_flight, 0)

    async def statistics(self) -> dict[str, float]:
        """Return the engine's counts, or the last known ones if it does not answer soon."""
        try:
            async with asyncio.timeout(_STATISTICS_S):
                self._statistics = await self.client.operate("statistics")
        except (TimeoutError, EngineUnavailable):
            pass
        self.metrics.engine.update(self._statistics)
        info = self.client.info
        self.metrics.engine.front = {
            "up": float(self.client.ready),
            "restarts": self.client.restarts,
            "requests_waiting": self.requests_waiting,
            "tokens_under_way": self.admission.tokens,
            "sequences_under_way": self.admission.sequences,
        }
        if info is not None:
            self.metrics.engine.front["step_budget"] = float(info.summary.get("step_tokens", 0))
        return self._statistics

    def _limits(self) -> Limits:
        info, settings = self.client.info, self.settings
        if info is None:
            raise EngineUnavailable("The engine is not ready.")
        return Limits(
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            max_items=settings.max_items_per_request,
            max_labels=settings.max_labels_per_request,
            max_request_tokens=settings.max_request_tokens,
            max_text_characters=settings.max_text_characters,
            max_sequences=settings.max_sequences_per_request,
            delimiter=settings.engine.multi_item_scoring_delimiter,
            layouts=settings.engine.enable_request_layout,
            head_labels=info.head_labels,
            head_activation=info.head_activation,
            architecture=info.architecture,
            signs=info.signs,
            rerank_recipe=settings.engine.rerank_recipe,
        )


async def in_thread_if_large(values: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that computes or encodes so many values, where it does not hold up the event loop."""
    if values <= _INLINE_VALUES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def json_reply(reply: Any, answered: Answered[Any, Any]) -> Response:
    """Encode a reply, with the time of each stage in `Server-Timing`."""
    return Response(msgspec.json.encode(reply), headers=_timing(answered), media_type="application/json")


def event_reply(request: Request, events: AsyncGenerator[Any], answered: Answered[Any, Any]) -> Response:
    """Send objects as server-sent events, then `[DONE]`, with the same header as `json_reply`.

    An error in the middle is the last event, as OpenAI has it: an object with `error`.
    """

    async def lines() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(events):
            try:
                async for event in events:
                    yield b"data: " + msgspec.json.encode(event) + b"\n\n"
                    await asyncio.sleep(0)  # others get a turn, too: a client that reads as fast never makes this wait
            except ClientDisconnect as error:
                forget_frames(error)
                return
            except Exception as error:
                yield b"data: " + error_body(request, error) + b"\n\n"
                return
        yield b"data: [DONE]\n\n"

    # nginx, and proxies that follow it, would hold events back until a buffer is full.
    headers = _timing(answered) | {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(lines(), headers=headers, media_type="text/event-stream")


def _prompt_tokens(parsed: Parsed) -> int:
    return sum(request.prompt_tokens for request in parsed.requests)


def _written(parsed: ParsedText) -> tuple[int, int]:
    """Return the most tokens that a request may compute, and how many sequences it has."""
    drawn = sum(request.num_items for request in parsed.requests if request.sampling is not None)
    return _prompt_tokens(parsed) + drawn + parsed.sequences.most_tokens, parsed.num_sequences


def _timing(answered: Answered[Any, Any]) -> dict[str, str]:
    stages = (f"{stage};dur={milliseconds:.1f}" for stage, milliseconds in answered.timings_ms.items())
    return {"server-timing": ", ".join(stages)}


async def _service(request: Request) -> ModelService:
    return request.app.state.service


ServiceOfApp = Annotated[ModelService, Depends(_service)]
"""A route's parameter of this type is the app's service."""
