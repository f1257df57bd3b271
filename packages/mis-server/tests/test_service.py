"""What takes long is done beside the event loop, or leaves others their turns."""

import asyncio
import contextlib
import copy
import dataclasses
import gc
import json
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from mis_core.config import EngineConfig
from mis_core.errors import RequestError
from mis_core.process.wire import Ready
from mis_core.requests import ScoreRequest
from mis_core.tasks.path.task import Task
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tokenization import Meter, Tokenizer
from mis_server import model as model_module
from mis_server.model import Model
from mis_server.service import event_reply
from mis_server.serving import serve
from mis_server.settings import ServerConfig
from mis_server.tokenizers.pool import SMALL
from mis_testing.server import free_port


def parsing_thread(*arguments: object) -> Any:
    return threading.get_ident()


def test_small_bodies_of_many_ids_are_parsed_off_the_event_loop(pretended: Any, tokenizers: Any) -> None:
    model = Model(EngineConfig(model="m"), pretended, tokenizers)
    task: Task[Any, None] = Task("complete", parsing_thread, lambda parsed, outputs, _: None, lambda fields: False)

    async def parse(prompts: int) -> object:
        return await model.parse(task, json.dumps({"prompt": [[1]] * prompts}).encode())

    assert asyncio.run(parse(20_000)) != threading.get_ident()
    assert asyncio.run(parse(20)) == threading.get_ident()


def test_what_small_bodies_cost_is_bounded_in_their_lane(pretended: Any, tokenizers: Any) -> None:
    """A query that all but fills a long context, and hundreds of documents that do not fit behind it."""
    lanes: list[tuple[str, int]] = []

    class Lanes:
        tokenizer = tokenizers.tokenizer

        async def small(self, work: Any, size: int) -> Any:
            return self._do("small", work)

        async def large(self, work: Any, size: int) -> Any:
            return self._do("large", work)

        def _do(self, lane: str, work: Any) -> Any:
            meter = Meter()
            counted = copy.copy(self.tokenizer)
            metered = counted.metered

            def watched(own: Meter) -> Tokenizer:
                nonlocal meter
                meter = own
                return metered(own)

            counted.metered = watched
            try:
                return work(counted)
            finally:
                lanes.append((lane, meter.cost))

    pretended.info = Ready(vocab_size=1024, context_length=40_960, architecture="Qwen3ForCausalLM", summary={})
    model = Model(EngineConfig(model="m"), pretended, cast(Any, Lanes()))
    query = "cat " * 17_000
    body = {"query": query, "documents": [f"of three words {number}" for number in range(800)]}
    parsed = asyncio.run(model.parse(RERANK, json.dumps(body).encode()))
    assert parsed.requests[0].num_items == 800
    (small, cost), (large, whole) = lanes
    assert (small, large) == ("small", "large")
    assert cost <= SMALL < whole < 8 * SMALL
    lanes.clear()
    asyncio.run(model.parse(RERANK, json.dumps(body | {"query": "cats?"}).encode()))
    assert [lane for lane, _ in lanes] == ["small"]


def nested(depth: int) -> list[Any]:
    """Lists as deep as a line of a file may have them."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


SCORED = {"query": "Good? ", "items": ["one", "", "häßlich \U0001f600"], "labels": ["yes", "no"], "apply_softmax": True}
IDS = {"query": [1, 2], "items": [[3], [], [4, 5]], "label_token_ids": [6, 7]}


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        (SCORE, SCORED),
        (SCORE, IDS),
        (SCORE, IDS | {"labels": ["yes"], "label_token_ids": None}),
        (SCORE, IDS | {"items": [[3]] * 20_000}),
        (SCORE, IDS | {"items": [[3]] * 20_001}),
        (SCORE, IDS | {"items": [[3], [-1]]}),
        (SCORE, IDS | {"items": [[3], [1 << 63], [1 << 70]]}),
        (SCORE, IDS | {"items": [[3], nested(600)]}),
        (SCORE, SCORED | {"items": ["one", [2]]}),
        (SCORE, SCORED | {"items": ["one", {"text": "two"}]}),
        (SCORE, SCORED | {"items": ["one", nested(600)]}),
        (SCORE, SCORED | {"items": ["word " * 5000]}),
        (SCORE, SCORED | {"items": ["words " * 800_000]}),
        (SCORE, SCORED | {"query": 3.5}),
        (SCORE, SCORED | {"temperature": 0.5, "apply_softmax": False}),
        (RERANK, {"query": "Which? ", "documents": ["of cats", {"text": "of dogs"}, "of the sea"]}),
        (RERANK, {"query": "Which? ", "documents": [["of cats"], nested(600)]}),
        (RERANK, {"query": [1, 2], "documents": [[1, 2]]}),
    ],
)
def test_fields_are_read_as_their_json_is(
    pretended: Any, tokenizers: Any, task: Task[Any, Any], fields: dict[str, Any]
) -> None:
    """The offline command has fields, and its rows have had the errors of bodies from the beginning."""
    model = Model(EngineConfig(model="m"), pretended, tokenizers)

    def outcome(source: Any) -> Any:
        try:
            (request,) = asyncio.run(model.parse(task, source)).requests
        except RequestError as error:
            return error.code, error.message, error.param
        values = ((field.name, getattr(request, field.name)) for field in dataclasses.fields(ScoreRequest))
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values}

    assert outcome(fields) == outcome(json.dumps(fields).encode())


def test_a_body_has_few_requests_in_the_engine_at_a_time(tokenizers: Any) -> None:
    class Counting:
        now = most = 0

        async def score(self, request: object) -> object:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return request

    engine = Counting()
    model = Model(EngineConfig(model="m"), cast(Any, engine), tokenizers)
    requests = cast(Any, tuple(range(200)))
    assert asyncio.run(model.submit(requests)) == requests
    assert engine.most == 16


def test_events_leave_others_their_turns() -> None:
    async def turns(events: int) -> int:
        async def other() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        count, task = 0, asyncio.create_task(other())

        async def told() -> AsyncGenerator[dict[str, int]]:
            for _ in range(events):
                yield {}

        reply = cast(
            Any, event_reply(cast(Any, None), told(), cast(Any, SimpleNamespace(timings_ms={}, is_mismatched=False)))
        )
        assert len([line async for line in reply.body_iterator]) == events + 1
        task.cancel()
        return count

    assert asyncio.run(turns(100)) >= 100


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, pretended: Any, checkpoint: Path) -> Any:
    """`async with serving(ready) as (task, url)`: serve here; the model is ready when the event is set."""

    @contextlib.asynccontextmanager
    async def opened(config: EngineConfig) -> AsyncIterator[Any]:
        yield pretended

    async def close(within_s: float) -> None:
        pass

    @contextlib.asynccontextmanager
    async def serving(ready: asyncio.Event) -> AsyncIterator[tuple[asyncio.Task[None], str]]:
        async def wait_ready(model: Model) -> Any:
            await ready.wait()
            return pretended.info

        monkeypatch.setattr(Model, "wait_ready", wait_ready)
        settings = ServerConfig(engine=EngineConfig(model=str(checkpoint)), port=free_port(), shutdown_timeout=120)
        task = asyncio.create_task(serve(settings))
        yield task, f"http://127.0.0.1:{settings.port}"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    pretended.close = close
    monkeypatch.setattr(model_module, "EngineClient", opened)
    return serving


def test_collecting_garbage_does_not_look_at_what_stays_for_ever(serving: Any) -> None:
    early: list[object] = [[]]  # as old as the application, which stays as long as the process

    async def main() -> None:
        gc.unfreeze()  # what servers before this one froze, of which some may be freed meanwhile
        ready = asyncio.Event()
        ready.set()
        async with serving(ready):
            await until(lambda: gc.get_freeze_count() > 0)
            later: list[object] = [[]]
            looked_at = [id(each) for each in gc.get_objects()]
            assert id(later) in looked_at
            assert id(early) not in looked_at
            gc.unfreeze()
            assert id(early) in [id(each) for each in gc.get_objects()]

    asyncio.run(main())


def test_a_model_may_become_ready_while_a_stopped_server_drains(serving: Any, pretended: Any) -> None:
    async def main() -> None:
        answers, ready = asyncio.Event(), asyncio.Event()
        score = pretended.score

        async def late(request: ScoreRequest) -> Any:
            pretended.started.set()
            await answers.wait()
            return await score(request)

        pretended.score = late
        body = {"query": [1], "items": [[2]], "label_token_ids": [7]}
        async with serving(ready) as (task, url), httpx.AsyncClient(trust_env=False, timeout=120) as client:
            while not await answering(client, url):
                await asyncio.sleep(0.01)
            asking = asyncio.create_task(client.post(f"{url}/v1/score", json=body))
            await until(pretended.started.is_set)
            signal.raise_signal(signal.SIGTERM)
            while await answering(client, url):
                await asyncio.sleep(0.01)
            ready.set()
            await asyncio.sleep(0.1)
            assert not task.done()
            answers.set()
            assert (await asking).status_code == 200
            await task

    asyncio.run(main())


async def answering(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health", headers={"connection": "close"})).is_success
    except httpx.TransportError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)
