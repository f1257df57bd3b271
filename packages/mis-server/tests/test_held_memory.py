"""What a request held is free when it has ended, however it ended, without a collection of garbage."""

import gc
import itertools
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mis_core.process.client import EngineFault

LARGE = 1 << 20  # bytes of a body; nothing else here is as large


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> list[str]:
    """What refers to a body that is still there."""
    return [
        str(each)[:200]
        for each in gc.get_objects()
        if any(type(held) is bytes and len(held) > LARGE for held in gc.get_referents(each))
    ]


def assert_freed() -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end and held():
        time.sleep(0.1)
    assert held() == []


BODIES: dict[str, str] = {
    "/v1/score": '{"query": "a", "items": ["b"], "label_token_ids": [7]',
    "/v1/rerank": '{"query": "a", "documents": ["b"]',
    "/v1/decisions": '{"input": "a", "questions": [{"type": "predicate", "name": "is", "instructions": "It is."}]',
    "/v1/completions": '{"prompt": "a", "max_tokens": 3',
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 3',
    "/tokenize": '{"prompt": "a"',
}
COMPUTED = [
    pytest.param(path, marks=[] if path in ("/v1/score", "/v1/chat/completions") else pytest.mark.full)
    for path in BODIES
    if path != "/tokenize"
]


def post(http: httpx.Client, path: str, more: str = "", **headers: str) -> int:
    """Send a body whose spaces are many, in parts, as clients keep what they send; return the status."""
    part = b" " * 65_536
    parts = itertools.chain(
        [BODIES[path].encode(), more.encode()], itertools.repeat(part, 1 + LARGE // len(part)), [b"}"]
    )
    return http.post(path, content=parts, headers={"content-type": "application/json"} | headers).status_code


@pytest.mark.parametrize("path", [*COMPUTED, "/tokenize"])
def test_an_answered_or_refused_request_holds_nothing(http: httpx.Client, path: str) -> None:
    assert post(http, path) in (200, 400)
    assert post(http, path, ', "unknown": 1') == 400
    assert_freed()


@pytest.mark.parametrize("path", COMPUTED)
def test_a_failed_request_holds_nothing(http: httpx.Client, pretended: Any, path: str) -> None:
    pretended.error, pretended.faulty_at = EngineFault("f"), 1
    assert post(http, path) == 500
    assert_freed()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_that_fails_holds_nothing(http: httpx.Client, pretended: Any, path: str) -> None:
    pretended.error, pretended.faulty_at = EngineFault("f"), 1
    assert post(http, path, ', "stream": true') == 200
    assert_freed()


@pytest.mark.parametrize("path", COMPUTED)
def test_a_late_request_holds_nothing(http: httpx.Client, pretended: Any, path: str) -> None:
    pretended.hangs, pretended.faulty_at = True, 1
    assert post(http, path, **{"x-request-timeout": "0.3"}) == 504
    assert_freed()


@pytest.mark.parametrize("path", COMPUTED)
def test_a_request_whose_client_leaves_holds_nothing(http: httpx.Client, pretended: Any, path: str) -> None:
    pretended.hangs, pretended.faulty_at = True, 1
    body = BODIES[path].encode() + b" " * LARGE + b"}"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body)
        del body
        assert pretended.started.wait(60)
        assert held()
    assert pretended.was_cancelled.wait(60)
    assert_freed()
