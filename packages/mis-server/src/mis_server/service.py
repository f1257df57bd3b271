"""What the routes share: the engine's client, the tokenizer, the settings, and the way of a score request."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import Depends, Request

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.request import LabelLogits, ScoreRequest, ScoreResult
from mis_core.scoring import finish
from mis_core.tokenization import Tokenizer
from mis_core.validation import Limits, parse_score_request
from mis_core.wire import Ready
from mis_server.settings import ServerConfig


class ScoringClient(Protocol):
    """What the routes need of an engine; `mis_core.client.EngineClient` is one."""

    @property
    def ready(self) -> bool:
        """Whether the engine can answer now."""
        ...

    @property
    def info(self) -> Ready | None:
        """The model's sizes, or None before the engine was ready for the first time."""
        ...

    async def score(self, request: ScoreRequest) -> LabelLogits:
        """Compute the label logits of a request."""
        ...


class Service:
    """One served model."""

    def __init__(self, client: ScoringClient, settings: ServerConfig, tokenizer: Tokenizer) -> None:
        self.client = client
        self.settings = settings
        self.created = int(time.time())
        self._tokenizer = tokenizer
        self._admitted = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request from before its body is read until it is answered.

        Raises:
            EngineUnavailable: the engine cannot answer now.
            RequestError: too many requests are under way.
        """
        if not self.client.ready:
            raise EngineUnavailable("The engine is not ready.")
        if self._admitted >= self.settings.max_queued_requests:
            raise RequestError("queue_full", f"{self._admitted} requests are under way; try again soon.")
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def score(self, body: bytes) -> tuple[ScoreRequest, ScoreResult]:
        """Validate a body, ask the engine, and turn logits into scores.

        Raises:
            RequestError: the request breaks the contract.
            EngineUnavailable: the engine cannot answer now, or died before it answered.
        """
        # Parsing and tokenising a large body takes longer than the event loop may be blocked.
        request = await asyncio.to_thread(self._parse, body)
        logits = await self.client.score(request)
        return request, await asyncio.to_thread(finish, request, logits)

    def _parse(self, body: bytes) -> ScoreRequest:
        return parse_score_request(
            _decode_object(body), self._tokenizer, self._limits(), served_models=(self.settings.model_name,)
        )

    def _limits(self) -> Limits:
        info = self.client.info
        if info is None:
            raise EngineUnavailable("The engine is not ready.")
        return Limits(
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            max_items=self.settings.max_items_per_request,
            max_labels=self.settings.max_labels_per_request,
            max_request_tokens=self.settings.max_request_tokens,
            delimiter=self.settings.engine.multi_item_scoring_delimiter,
            layouts=self.settings.engine.enable_request_layout,
        )


def _decode_object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise RequestError("invalid_json", "The body is not UTF-8.") from None
    except RecursionError:
        raise RequestError("invalid_json", "The body is nested too deeply.") from None
    except msgspec.DecodeError as error:
        raise RequestError("invalid_json", f"The body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise RequestError("invalid_json", "The body must be a JSON object.")
    return fields


async def _service(request: Request) -> Service:
    return request.app.state.service


ServiceOfApp = Annotated[Service, Depends(_service)]
"""A route's parameter of this type is the app's service."""
