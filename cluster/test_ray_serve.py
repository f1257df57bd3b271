"""The server on Ray Serve: the same replies, a query stays with its replica, and a replica may be killed."""

import gzip
import importlib.util
import inspect
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from documented_commands import ROOT
from mis_core import Engine
from ray_node import RayNode
from ray_serving import serving

REPLICAS = 3


@pytest.fixture(scope="module")
def base_url(ray_cluster: RayNode, checkpoint: Path) -> Iterator[str]:
    sizes = (f"min_replicas={REPLICAS}", "replica_cpus=0.5", "gate_cpus=0.5", "max_body_bytes=1000000")
    with serving(ray_cluster, checkpoint, *sizes) as server:
        yield server.base_url


@pytest.fixture
def http(base_url: str) -> Iterator[httpx.Client]:
    headers = {"authorization": "Bearer none"}
    with httpx.Client(base_url=base_url, headers=headers, trust_env=False, timeout=120) as client:
        yield client


@pytest.fixture
def client(base_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    monkeypatch.setenv("NO_PROXY", "*")
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def server(base_url: str) -> SimpleNamespace:
    return SimpleNamespace(base_url=base_url)


@pytest.fixture
def score_body() -> Callable[..., dict[str, Any]]:
    return lambda **changes: {"query": [1, 2, 3], "items": [[4, 5], [6]], "label_token_ids": [7, 8]} | changes


def _tests_of_the_client() -> ModuleType:
    path = ROOT / "packages" / "mis-server" / "tests" / "test_openai_client.py"
    spec = importlib.util.spec_from_file_location("tests_of_the_openai_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The tests of the official client that need no pretended engine.
_PRETENDED = {"pretended", "connect"}
_OTHERWISE = {
    # Pretended answers are drawn without a seed, and are the same each time.
    "test_chats_are_answered_with_log_probabilities",
    "test_streamed_chats_are_the_same_answer",
    "test_completions_take_ids_and_stream",
}
for _name, _test in vars(_tests_of_the_client()).items():
    _needs = set(inspect.signature(_test).parameters) if _name.startswith("test_") else set()
    if {"client", "server"} & _needs and not _PRETENDED & _needs and _name not in _OTHERWISE:
        globals()[_name] = _test


def question(number: int, item: str = "one") -> dict[str, Any]:
    return {"query": f"Question {number}: " + f"is it {number} or not? " * 12, "items": [item], "labels": ["yes", "no"]}


def ask_all(http: httpx.Client, asked: list[tuple[int, str]], callers: int, **headers: str) -> list[httpx.Response]:
    def ask(each: tuple[int, str]) -> httpx.Response:
        number, item = each
        named = {name: value.format(number=number, item=item) for name, value in headers.items()}
        return http.post("/v1/score", json=question(number, item), headers=named)

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(ask, asked))


def hits_of_second(http: httpx.Client, queries: int, first: int, **headers: str) -> float:
    """Share of second requests of a query that found it cached; all requests shuffled, eight callers."""
    asked = [(first + number, item) for number in range(queries) for item in ("one", "two")]
    random.Random(first).shuffle(asked)
    seen: set[int] = set()
    is_second = [number in seen or seen.add(number) is not None for number, _ in asked]
    replies = ask_all(http, asked, 8, **headers)
    assert {reply.status_code for reply in replies} == {200}
    cached = [reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for reply in replies]
    return sum(hit for hit, second in zip(cached, is_second, strict=True) if second) / queries


@pytest.mark.parametrize("queries", [60, pytest.param(600, marks=pytest.mark.full)])
def test_a_query_stays_with_its_replica(http: httpx.Client, queries: int, record_property: Any) -> None:
    together = hits_of_second(http, queries, 1000 + queries)
    # A name of its own for every request is what a balancer does that knows nothing of queries.
    apart = hits_of_second(http, queries, 3000 + queries, **{"x-mis-prefix": "{number} {item}"})
    record_property("hits", [together, apart])
    print(f"{queries} queries: {together:.3f} of second requests hit, {apart:.3f} at random")  # noqa: T201
    assert together >= 0.95
    assert apart < 0.6


def test_errors_and_headers_are_those_of_the_application(http: httpx.Client) -> None:
    unknown = http.post("/v1/score", json=question(1) | {"what": 1}, headers={"x-request-id": "mine"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "unknown_parameter")
    assert unknown.headers.get_list("x-request-id") == ["mine"]
    large = http.post("/v1/score", content=b"[" * 1_100_000, headers={"content-type": "application/json"})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    without = http.post("/v1/score", json=question(1), headers={"authorization": "Bearer other"})
    assert (without.status_code, without.json()["error"]["code"]) == (401, "invalid_api_key")
    assert http.get("/nothing").json()["error"]["code"] == "not_found"
    assert "server-timing" in http.post("/v1/score", json=question(1)).headers


def test_a_compressed_body_is_read_and_finds_its_query(http: httpx.Client) -> None:
    plain = http.post("/v1/score", json=question(9001)).json()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    squeezed = http.post("/v1/score", content=gzip.compress(json.dumps(question(9001)).encode()), headers=headers)
    assert squeezed.status_code == 200, squeezed.text
    assert squeezed.json()["scores"] == plain["scores"]
    assert squeezed.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_lines_of_a_batch_equal_replies_to_single_requests(http: httpx.Client) -> None:
    asked = {"questions": {"refund": {"type": "noul", "instructions": "Does the customer want money back?"}}}
    states = ["I was charged twice.", {"text": "Thanks!"}, "Where is it?"]
    batch = http.post("/v1/systemone/batch", json=asked | {"states": states})
    assert batch.status_code == 200, batch.text
    alone = [http.post("/v1/systemone", json=asked | {"state": state}).json() for state in states]
    assert [json.loads(line)["answers"] for line in batch.text.splitlines()] == [reply["answers"] for reply in alone]


@pytest.mark.full  # as HAProxy's test does, in the short form, with the same server behind it
def test_a_replica_that_is_killed_gives_no_wrong_score(
    ray_cluster: RayNode, http: httpx.Client, engine: Engine
) -> None:
    want = {}
    for number in range(40):
        body = question(number)
        want[number] = engine.score(**body).scores.tolist()
    victims = ray_cluster.workers("Replica:default:replicas")
    assert len(victims) == REPLICAS
    asked = [(number % 40, "one") for number in range(400)]
    timer = threading.Timer(0.5, os.kill, (victims[0], signal.SIGKILL))
    timer.start()
    replies = ask_all(http, asked, 8)
    timer.join()
    failed = 0
    for (number, _), reply in zip(asked, replies, strict=True):
        if reply.status_code == 200:
            assert reply.json()["scores"] == want[number]
        else:
            failed += 1
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable"), reply.text
            assert int(reply.headers["retry-after"]) > 0
    print(f"{failed} of 400 requests failed")  # noqa: T201
    assert failed <= 40
    assert victims[0] not in ray_cluster.workers("Replica:default:replicas")
    again = ask_all(http, asked[:80], 8)
    assert [reply.json()["scores"] for reply in again] == [want[number] for number, _ in asked[:80]]
