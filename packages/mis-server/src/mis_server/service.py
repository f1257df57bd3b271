"""What the routes share: one served model, and the path of every request with a body to it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from mis_core.errors import EngineUnavailable
from mis_core.requests import GenerateRequest, NewToken
from mis_core.tasks.path.service import Answered
from mis_core.tasks.path.task import Parsed, ParsedType, Task
from mis_core.tasks.text.choices import GeneratedChoices
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_core.tasks.usage import Usage
from mis_server.edge.admission import Admission, Permit, deadline, requested_seconds
from mis_server.edge.body import BodyBytes, announced_bytes, read_json_body
from mis_server.errors import error_body, forget_frames
from mis_server.generation import GenerationStream
from mis_server.model import Model, some_at_a_time
from mis_server.schemas.score import PromptTokensDetails, ScoreUsage
from mis_server.settings import ServerConfig
from mis_server.telemetry.metrics import Metrics, TokenClock

_STATISTICS_S = 2.0

UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of streams: nginx, and proxies that follow it, would hold parts back until a buffer is full."""

Result = TypeVar("Result")
TextType = TypeVar("TextType", bound=ParsedText)
DrawnType = TypeVar("DrawnType", bound=TextResult)


class HttpService:
    """A served model over HTTP: what a request with a body passes before the model gets it.

    Attributes:
        model: The model.
        settings: Names, keys and limits.
        name: Of the model, in requests and replies.
        admission: How much may be under way.
        bodies: How many bytes of bodies may be.
        metrics: What is counted.
    """

    def __init__(self, model: Model, settings: ServerConfig) -> None:
        self.model = model
        self.settings = settings
        self.name = settings.model_name
        self.admission = Admission(
            settings.max_queued_requests, settings.max_queued_tokens, settings.max_queued_sequences
        )
        self.bodies = BodyBytes(settings.max_body_bytes_under_way, settings.max_body_bytes)
        self.metrics = Metrics()

    async def handle(self, task: Task[ParsedType, Result], request: Request) -> Answered[ParsedType, Result]:
        """Answer an HTTP request of the given task.

        Raises:
            RequestError: the model does not have this task, the request breaks the contract, there is no room for it,
                or its deadline passed.
            EngineUnavailable: the engine cannot answer now, or ended before it answered.
            ClientDisconnect: the client is gone.
        """
        self.model.check(task)
        async with self.admitted(request) as (body, permit):
            return await self.answer(task, body, permit)

    async def answer(self, task: Task[ParsedType, Result], body: bytes, permit: Permit) -> Answered[ParsedType, Result]:
        """Answer a body of the given task that has a permit, and count it.

        Raises:
            RequestError, EngineUnavailable: as `handle`.
        """
        began = time.perf_counter()
        answered = await self.model.answer(task, body, lambda parsed: permit.allocate(_prompt_tokens(parsed)))
        self.metrics.answered(task.name, answered, time.perf_counter() - began)
        return answered

    async def generate(
        self, task: Task[TextType, DrawnType], request: Request
    ) -> GenerationStream[TextType, DrawnType]:
        """Begin to answer an HTTP request with text; return when what is scored is there and the rest is on its way.

        The deadline and the permit are those of the whole answer, until it is handed to the client.

        Raises:
            RequestError, EngineUnavailable, ClientDisconnect: as `handle`.
        """
        self.model.check(task)
        return await GenerationStream[TextType, DrawnType].start(partial(self._generate, task, request))

    async def _generate(
        self, task: Task[TextType, DrawnType], request: Request, stream: GenerationStream[TextType, DrawnType]
    ) -> None:
        async with self.admitted(request) as (body, permit):
            clock = TokenClock(self.metrics)
            answered = await self.model.answer(task, body, lambda parsed: permit.allocate(*_most_generated(parsed)))
            sequences, drawn = answered.parsed.sequences, answered.result.tokens
            tokenizer = self.model.tokenizers.tokenizer
            choices = GeneratedChoices(tokenizer, answered.parsed.options.stops, len(sequences) or len(drawn))
            stream.begin(answered, choices)

            def read(index: int, token: NewToken) -> bool:
                clock.generated(index)
                chunk = choices.add(index, token)
                if chunk is not None:
                    stream.put(chunk)
                return chunk is not None and chunk.finish_reason is None

            async def generate(numbered: tuple[int, GenerateRequest]) -> None:
                index, sequence = numbered
                await stream.room()
                await self.model.client.generate(sequence, partial(read, index))

            for index, token in enumerate(drawn):
                await stream.room()
                read(index, token)
            await some_at_a_time(generate, enumerate(sequences))
            self.metrics.answered(task.name, answered, clock.seconds)
            for index, cached in enumerate(choices.cached_tokens if sequences else ()):
                self.metrics.prompted(int(sequences.prompts.lens[index // sequences.options.draws]), cached)

    def head(self, kind: str, request: Request) -> dict[str, Any]:
        """Return how a reply begins: `id`, `created` and `model`."""
        return {"id": f"{kind}-{request.state.request_id}", "created": int(time.time()), "model": self.name}

    @contextlib.asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[tuple[bytes, Permit]]:
        """As `arrived`, with a permit; raises the same."""
        async with self.arrived(request) as body:
            with self.admission.permit() as permit:
                yield body, permit

    @contextlib.asynccontextmanager
    async def arrived(self, request: Request) -> AsyncIterator[bytes]:
        """Read the body of an HTTP request and give it; what is done inside has until the deadline.

        Raises:
            RequestError: `invalid_request_timeout`, `unsupported_media_type`, `request_timeout`, `queue_full`, or
                `deadline_exceeded`.
            ClientDisconnect: the client is gone.
        """
        seconds = requested_seconds(request, self.settings.request_timeout)
        async with deadline(request, seconds, self.settings.body_timeout) as body_arrived:
            announced = announced_bytes(request.headers, self.settings.max_body_bytes)
            with self.bodies.room(announced) as room:
                with self.admission.body():
                    body = await read_json_body(request, room)
                body_arrived()
                yield body

    @property
    def requests_waiting(self) -> int:
        """Number of requests whose bodies have arrived but which are not in the engine."""
        return max(self.admission.requests - self.model.client.in_flight, 0)

    async def statistics(self) -> dict[str, float]:
        """Return the engine's counts, or the last known ones if it does not answer soon."""
        try:
            async with asyncio.timeout(_STATISTICS_S):
                await self.model.client.operate("statistics")
        except (TimeoutError, EngineUnavailable):
            pass
        self.metrics.engine.update(self.model.client.statistics)
        info = self.model.client.info
        self.metrics.engine.front = {
            "up": float(self.model.ready),
            "restarts": self.model.client.restarts,
            "requests_waiting": self.requests_waiting,
            "tokens_under_way": self.admission.tokens,
            "sequences_under_way": self.admission.sequences,
        }
        if info is not None:
            self.metrics.engine.front["step_budget"] = float(info.summary.get("step_tokens", 0))
        return self.model.client.statistics


def usage_of(usage: Usage) -> ScoreUsage:
    """Return the token counts of a result that has no tokens of its own, as a reply says them."""
    count, details = usage.prompt_tokens, PromptTokensDetails(usage.cached_tokens)
    return ScoreUsage(prompt_tokens=count, total_tokens=count, prompt_tokens_details=details)


def json_reply(reply: Any, answered: Answered[Any, Any]) -> Response:
    """Encode a reply, with the time of each stage in `Server-Timing`."""
    return Response(msgspec.json.encode(reply), headers=_headers(answered), media_type="application/json")


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

    return StreamingResponse(lines(), headers=_headers(answered) | UNBUFFERED, media_type="text/event-stream")


def _prompt_tokens(parsed: Parsed) -> int:
    return sum(request.prompt_tokens for request in parsed.requests)


def _most_generated(parsed: ParsedText) -> tuple[int, int]:
    """Return the most tokens that a request may compute, and how many sequences it has."""
    return _prompt_tokens(parsed) + parsed.num_drawn + parsed.sequences.most_tokens, parsed.num_sequences


def _headers(answered: Answered[Any, Any]) -> dict[str, str]:
    """Return the time of each stage, and whether the calibration is another model's."""
    stages = (f"{stage};dur={milliseconds:.1f}" for stage, milliseconds in answered.timings_ms.items())
    mismatch = {"x-mis-calibration": "mismatch"} if answered.is_mismatched else {}
    return {"server-timing": ", ".join(stages)} | mismatch


def service_of(request: Request) -> HttpService:
    """Return the app's service. Routes with bodies call it: as a dependency, it costs a tenth of a small request."""
    return request.app.state.service


async def _service(request: Request) -> HttpService:  # a function that is not async would run in a thread
    return service_of(request)


ServiceOfApp = Annotated[HttpService, Depends(_service)]
"""A route's parameter of this type is the app's service."""
