"""The application over real HTTP, with an engine that only pretends."""

import asyncio
import dataclasses
import itertools
import pickle
import socket
import string
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest
import uvicorn
from pydantic import BaseModel, ConfigDict

from mis_core.config import EngineConfig
from mis_core.process.client import Reader
from mis_core.process.wire import Ready
from mis_core.ragged import rows_at
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, ScoreRequest
from mis_core.tokenization import Tokenizer
from mis_server.serving import uvicorn_config
from mis_server.settings import ServerConfig
from mis_testing import tiny_checkpoint
from served_app import served_app


class PretendedEngine:
    """Answers logit = 0.01 * token of the row + 0.1 * label id, normaliser 4. Tests change its attributes."""

    def __init__(self) -> None:
        self.ready = True
        self.info: Ready | None = Ready(
            vocab_size=1024, context_length=256, summary={"devices": "1 x pretended", "step_tokens": 2048}
        )
        self.error: Exception | None = None
        self.offset = 0.0
        self.hangs = False
        self.started = threading.Event()
        self.was_cancelled = threading.Event()
        self.requests: list[ScoreRequest] = []
        self.sequences: list[GenerateRequest] = []
        self.written = 0
        self.faulty_at = 0  # the token of a sequence at which it fails or hangs
        self.in_flight = 0
        self.restarts = 0
        self.operations: list[str] = []
        self.statistics: dict[str, float] = {}
        self.next_ids = [70, 71]
        self.placements: np.ndarray | None = None

    async def score(self, request: ScoreRequest) -> EngineOutput:
        self.requests.append(request)
        self.started.set()
        if self.error is not None:
            raise self.error
        if self.hangs:
            await self._hang()
        logits = (0.01 * read_tokens(request)[:, None] + 0.1 * request.label_ids + self.offset).astype(np.float32)
        normalisers = np.full(request.num_reads, 4, np.float32) if request.needs_log_sum_exp else None
        return dataclasses.replace(
            drawn(request, self.next_ids),
            logits=logits,
            log_sum_exp=normalisers,
            cached_tokens=1,
            algorithm="packed",
            placements=self.placements if request.return_layout else None,
        )

    async def generate(self, request: GenerateRequest, reader: Reader) -> None:
        self.sequences.append(request)
        self.started.set()
        top_ids = np.arange(40, 40 + request.top_tokens, dtype=np.int32)
        for place in range(request.max_new_tokens):
            if place == self.faulty_at and self.error is not None:
                raise self.error
            if place == self.faulty_at and self.hangs:
                await self._hang()
            token = self.next_ids[place % len(self.next_ids)]
            reason = "stop" if token in request.end_ids else "length" if place + 1 == request.max_new_tokens else None
            self.written += 1
            top_logprobs = (-1 - 0.1 * (top_ids - 40)).astype(np.float32)
            logprob = float(np.float32(0.01 * token - 4 + self.offset))
            if not reader(NewToken(token, logprob, top_ids, top_logprobs, reason, cached_tokens=1)) or reason:
                return
            await asyncio.sleep(0)

    async def operate(self, action: str, argument: str | None = None) -> dict[str, float]:
        if self.error is not None:
            raise self.error
        if action != "statistics":
            self.operations.append(action if argument is None else f"{action} {argument}")
            return {"freed_pages": 4} if action == "flush_cache" else {}
        counts = {"steps": 3, "new_tokens": 90, "step_tokens": 128, "waiting_requests": 0}
        self.statistics = counts | {"cache_hit_tokens": 5, "cache_missed_tokens": 15, "held_pages": 2, "pages": 8}
        return self.statistics

    async def _hang(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


def read_tokens(request: ScoreRequest) -> np.ndarray:
    """The token of every row that is read: of the query, then of each item."""
    lens = np.diff(request.read_starts)
    items = rows_at(request.item_tokens, request.item_starts[1:] - lens, lens)
    return np.concatenate([request.query[len(request.query) - request.query_reads :], items])


def drawn(request: ScoreRequest, next_ids: list[int]) -> EngineOutput:
    """An answer without labels: tokens 40, 41, ... are the most probable ones, and the next ones are given."""
    top_ids = np.tile(np.arange(40, 40 + request.top_tokens, dtype=np.int32), (request.num_reads, 1))
    tokens = np.resize(np.array(next_ids, np.int32), request.num_items)
    return EngineOutput(
        logits=np.zeros((request.num_reads, 0), np.float32),
        log_sum_exp=None,
        top_ids=top_ids if request.top_tokens else None,
        top_logits=(3 - 0.1 * (top_ids - 40)).astype(np.float32) if request.top_tokens else None,
        next_ids=None if request.sampling is None else tokens,
        next_logits=None if request.sampling is None else (0.01 * tokens).astype(np.float32),
    )


@contextmanager
def listening(settings: ServerConfig, app: Any) -> Iterator[str]:
    """Run an application as production does, in a thread; gives its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Of what a client does not read little waits in the kernel, which would take megabytes.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        server = uvicorn.Server(uvicorn_config(settings, app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join()


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(checkpoint)


@pytest.fixture
def pretended() -> PretendedEngine:
    return PretendedEngine()


@pytest.fixture(scope="session")
def with_codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose vocabulary has a code for each of 255 options, and a context that holds them."""
    from transformers import AutoTokenizer  # slow to import

    path = tiny_checkpoint(tmp_path_factory.mktemp("codes"), "qwen3", vocab_size=2048, max_position_embeddings=16384)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2)])
    tokenizer.save_pretrained(path)
    return path


class TokenizersInThreads:
    """Does the work of a pool in threads, as its processes would take a second to start for every application."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ready = True

    async def small(self, work: Callable[[Tokenizer], Any], size: int) -> Any:
        return await asyncio.to_thread(pickle.loads(pickle.dumps(work)), self.tokenizer)

    large = small

    def check(self) -> None:
        """Threads can always be started."""


@pytest.fixture(scope="session")
def tokenizers(tokenizer: Tokenizer) -> Any:
    return TokenizersInThreads(tokenizer)


@contextmanager
def connected(
    pretended: PretendedEngine, tokenizers: Any, engine_options: Any = None, **options: Any
) -> Iterator[httpx.Client]:
    """Run an application with these settings; gives a client of it."""
    engine = EngineConfig(model="some/model", **(engine_options or {}))
    settings = ServerConfig(engine=engine, shutdown_timeout=1, **options)
    with ExitStack() as stack:
        url = stack.enter_context(listening(settings, served_app(pretended, settings, tokenizers)))
        # Certificates, which plain HTTP does not need, would be read for every client.
        yield stack.enter_context(httpx.Client(base_url=url, trust_env=False, verify=False, timeout=120))


@pytest.fixture(name="connected", scope="session")
def _connected() -> Callable[..., Any]:
    """`with connected(pretended, tokenizers) as http`: a client of an application with these."""
    return connected


@pytest.fixture
def connect(pretended: PretendedEngine, tokenizers: Any) -> Iterator[Callable[..., httpx.Client]]:
    """`connect(api_key="secret")`: an HTTP client of an application with these settings."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(connected(pretended, tokenizers, **options))


@pytest.fixture(scope="module")
def shared(tokenizers: Any) -> Iterator[Callable[..., tuple[httpx.Client, PretendedEngine]]]:
    """`shared(api_key="secret")`: as `connect`, but one for the tests of a file; and its engine, as it was made."""
    running: dict[str, tuple[httpx.Client, PretendedEngine]] = {}
    with ExitStack() as stack:

        def make(**options: Any) -> tuple[httpx.Client, PretendedEngine]:
            key = repr(sorted(options.items()))
            if key not in running:
                engine = PretendedEngine()
                running[key] = stack.enter_context(connected(engine, tokenizers, **options)), engine
            http, engine = running[key]
            engine.__dict__.update(vars(PretendedEngine()))
            return http, engine

        yield make


@pytest.fixture
def http(connect: Callable[..., httpx.Client]) -> httpx.Client:
    """An HTTP client of an application with default settings."""
    return connect()


def score_body(**changes: Any) -> dict[str, Any]:
    """A valid body of token ids, changed."""
    return {"query": [1, 2, 3], "items": [[4, 5], [6]], "label_token_ids": [7, 8]} | changes


@pytest.fixture(name="score_body")
def _score_body() -> Callable[..., dict[str, Any]]:
    """`score_body(items=[])`: a valid body of token ids, changed."""
    return score_body


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _CachedTokens(_Strict):
    cached_tokens: int


class _Usage(_Strict):
    prompt_tokens: int
    completion_tokens: Literal[0]
    total_tokens: int
    prompt_tokens_details: _CachedTokens


class _ItemError(_Strict):
    index: int
    code: str
    message: str
    param: str


class _Placement(_Strict):
    step: int
    shard: int
    row: int
    item: int | None
    tokens: int
    context_tokens: int


class _Layout(_Strict):
    algorithm: str
    reason: str
    steps: int
    segments: int
    contexts: int
    cached_tokens: int
    query_tokens: int
    step_tokens: int
    placements: list[_Placement]


class _ScoreReply(_Strict):
    id: str
    object: Literal["scoring"]
    created: int
    model: str
    scores: list[list[float] | None]
    token_logprobs: list[list[float] | None] | None
    usage: _Usage
    errors: list[_ItemError] = []
    layout: _Layout | None = None


@pytest.fixture(scope="session")
def check_score_reply() -> Callable[[bytes], object]:
    """`check_score_reply(content)`: fails unless it is a reply of `/v1/score` as the contract says."""
    return _ScoreReply.model_validate_json


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """The settings that `serve` was called with."""
    calls: list[ServerConfig] = []

    async def serve(settings: ServerConfig) -> None:
        calls.append(settings)

    monkeypatch.setattr("mis_server.serving.serve", serve)
    return calls
