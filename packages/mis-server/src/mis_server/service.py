"""What the routes share: the engine's client, the tokenizer, the settings, and the way of a score request."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Request

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.wire import Ready
from mis_core.scoring.request import LabelLogits, ScoreRequest, ScoreResult
from mis_core.scoring.scores import finish
from mis_core.scoring.validation import Limits, parse_score_request
from mis_core.tokenization import Tokenizer
from mis_server.edge.admission import Admission, Place
from mis_server.edge.decoding import decode_score_body
from mis_server.settings import ServerConfig
from mis_server.telemetry.metrics import Metrics
from mis_server.tokenizers.pool import SMALL
from mis_server.tokenizers.worker import score_request

INLINE_SCORES = 32_768
"""Up to so many, scores are made in little more than the time that a thread takes to be woken."""

_AMPLIFIED = 8  # characters that tokenising a small body may read for each of its bytes,
_LEAST = 4096  # or so many at least
_STATISTICS_S = 2.0


Result = TypeVar("Result")


class ScoringClient(Protocol):
    """What the routes need of an engine; `mis_core.process.client.EngineClient` is one."""

    @property
    def ready(self) -> bool:
        """Whether the engine can answer now."""
        ...

    @property
    def info(self) -> Ready | None:
        """The model's sizes, or None before the engine was ready for the first time."""
        ...

    @property
    def in_flight(self) -> int:
        """Number of requests in the engine."""
        ...

    @property
    def restarts(self) -> int:
        """How often the engine process was started again."""
        ...

    async def score(self, request: ScoreRequest) -> LabelLogits:
        """Compute the label logits of a request."""
        ...

    async def statistics(self) -> dict[str, float]:
        """Return the engine's counts and the state of its cache."""
        ...

    async def flush_cache(self) -> int:
        """Forget cached queries; return how many pages that freed."""
        ...

    async def start_profile(self, directory: str) -> None:
        """Begin a profile, to be written to a folder."""
        ...

    async def stop_profile(self) -> None:
        """End the profile; returns when it is written."""
        ...


class Tokenizers(Protocol):
    """Where texts become tokens; `tokenizers.pool.TokenizerPool` says how."""

    async def small(self, work: Callable[[Tokenizer], Result], size: int) -> Result:
        """Do a little work."""
        ...

    async def large(self, work: Callable[[Tokenizer], Result], size: int) -> Result:
        """Do much work."""
        ...


class Service:
    """One served model."""

    def __init__(self, client: ScoringClient, settings: ServerConfig, tokenizers: Tokenizers) -> None:
        self.client = client
        self.settings = settings
        self.tokenizers = tokenizers
        self.created = int(time.time())
        self.admission = Admission(settings.max_queued_requests, settings.max_queued_tokens)
        self.metrics = Metrics()
        self._statistics: dict[str, float] = {}
        self._known: tuple[Ready, Limits] | None = None

    async def score(self, body: bytes, place: Place) -> tuple[ScoreRequest, ScoreResult]:
        """Validate a body, ask the engine, and turn logits into scores.

        Raises:
            RequestError: the request breaks the contract, or there is no room for its tokens.
            EngineUnavailable: the engine cannot answer now, or died before it answered.
        """
        began = time.perf_counter()
        request = await self.parse(body)
        tokenize_ms = (time.perf_counter() - began) * 1e3
        place.take(request.prompt_tokens)
        logits = await self.client.score(request)
        if logits.logits.size <= INLINE_SCORES:
            result = finish(request, logits)
        else:
            result = await asyncio.to_thread(finish, request, logits)
        result.timings_ms["tokenize"] = tokenize_ms
        self.metrics.answered(request, result, time.perf_counter() - began)
        return request, result

    async def statistics(self) -> dict[str, float]:
        """Return the engine's counts; what was last heard if it does not answer soon."""
        try:
            async with asyncio.timeout(_STATISTICS_S):
                self._statistics = await self.client.statistics()
        except (TimeoutError, EngineUnavailable):
            pass
        self.metrics.engine.hear(self._statistics)
        info = self.client.info
        self.metrics.engine.front = {
            "up": float(self.client.ready),
            "restarts": self.client.restarts,
            "requests_waiting": max(self.admission.requests - self.client.in_flight, 0),
            "tokens_under_way": self.admission.tokens,
        }
        if info is not None:
            self.metrics.engine.front["step_budget"] = float(info.summary.get("step_tokens", 0))
        return self._statistics

    async def parse(self, body: bytes) -> ScoreRequest:
        """Validate a body: here if it is small and holds no text, else where the work can be ended.

        Raises:
            RequestError: the request breaks the contract.
            EngineUnavailable: the engine was never ready.
        """
        limits, models = self._limits(), (self.settings.model_name,)
        if len(body) > SMALL:
            return await self.tokenizers.large(partial(score_request, body, limits, models), len(body))
        fields = decode_score_body(body)
        if not (isinstance(fields.get("query"), str) or "labels" in fields):
            return parse_score_request(fields, None, limits, models)
        # Few texts that are tokenised again with each of many items are large work, too.
        most = min(max(_AMPLIFIED * len(body), _LEAST), SMALL, limits.max_text_characters)
        try:
            narrow = replace(limits, max_text_characters=most)
            return await self.tokenizers.small(partial(score_request, body, narrow, models), len(body))
        except RequestError as error:
            if error.code != "too_many_tokens" or most == limits.max_text_characters:
                raise
        return await self.tokenizers.large(partial(score_request, body, limits, models), len(body))

    def _limits(self) -> Limits:
        info = self.client.info
        if info is None:
            raise EngineUnavailable("The engine is not ready.")
        if self._known is None or self._known[0] is not info:
            self._known = info, self._limits_of(info)
        return self._known[1]

    def _limits_of(self, info: Ready) -> Limits:
        settings = self.settings
        return Limits.of(
            settings.engine,
            info.context_length,
            info.vocab_size,
            max_items=settings.max_items_per_request,
            max_labels=settings.max_labels_per_request,
            max_request_tokens=settings.max_request_tokens,
            max_text_characters=settings.max_text_characters,
        )


async def _service(request: Request) -> Service:
    return request.app.state.service


ServiceOfApp = Annotated[Service, Depends(_service)]
"""A route's parameter of this type is the app's service."""
