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


class Bodies:
    """Bodies that are still there, but for large bytes that were there before."""

    def __init__(self) -> None:
        self._before = {id(each) for each, _ in self._large()}

    def holders(self) -> list[str]:
        """Types of what refers to them."""
        return [holder for each, holder in self._large() if id(each) not in self._before]

    def assert_freed(self) -> None:
        end = time.monotonic() + 5
        while time.monotonic() < end and self.holders():
            time.sleep(0.1)
        assert self.holders() == []

    def _large(self) -> Iterator[tuple[bytes, str]]:
        for holder in gc.get_objects():
            for each in gc.get_referents(holder):
                if type(each) is bytes and len(each) > LARGE:
                    yield each, type(holder).__name__


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    gc.collect()
    gc.disable()
    yield Bodies()
    gc.enable()


BODIES: dict[str, str] = {
    "/v1/score": '{"query": "a", "items": ["b"], "label_token_ids": [7]',
    "/v1/rerank": '{"query": "a", "documents": ["b"]',
    "/v1/decisions": '{"input": "a", "questions": [{"type": "predicate", "name": "is", "instructions": "It is."}]',
    "/v1/completions": '{"prompt": "a", "max_tokens": 3',
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 3',
    "/tokenize": '{"prompt": "a"',
}
BATCH = "/v1/systemone/batch"
BATCHES = {BATCH: '{"states": ["a", 5, "b"], "questions": {"n": {"type": "noul", "instructions": "Is it?"}}'}
COMPUTED = [
    pytest.param(path, marks=[] if path in ("/v1/score", "/v1/chat/completions") else pytest.mark.full)
    for path in BODIES
    if path != "/tokenize"
]


def post(http: httpx.Client, path: str, more: str = "", **headers: str) -> int:
    """Send a body whose spaces are many, in parts, as clients keep what they send; return the status."""
    part = b" " * 65_536
    parts = itertools.chain(
        [(BODIES | BATCHES)[path].encode(), more.encode()], itertools.repeat(part, 1 + LARGE // len(part)), [b"}"]
    )
    return http.post(path, content=parts, headers={"content-type": "application/json"} | headers).status_code


@pytest.mark.parametrize("path", [*COMPUTED, "/tokenize"])
def test_an_answered_or_refused_request_holds_nothing(http: httpx.Client, bodies: Bodies, path: str) -> None:
    assert post(http, path) in (200, 400)
    assert post(http, path, ', "unknown": 1') == 400
    bodies.assert_freed()


def test_an_answered_or_refused_batch_holds_nothing(http: httpx.Client, bodies: Bodies) -> None:
    assert post(http, BATCH) == 200
    assert post(http, BATCH, ', "assets": {}') == 422
    bodies.assert_freed()


@pytest.mark.parametrize("path", COMPUTED)
def test_a_failed_request_holds_nothing(http: httpx.Client, bodies: Bodies, pretended: Any, path: str) -> None:
    pretended.error, pretended.faulty_at = EngineFault("f"), 1
    assert post(http, path) == 500
    bodies.assert_freed()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", BATCH])
def test_a_stream_that_fails_holds_nothing(http: httpx.Client, bodies: Bodies, pretended: Any, path: str) -> None:
    pretended.error, pretended.faulty_at = EngineFault("f"), 1
    assert post(http, path, ', "stream": true') == 200
    bodies.assert_freed()


def test_a_late_batch_holds_nothing(http: httpx.Client, bodies: Bodies, pretended: Any) -> None:
    pretended.hangs = True
    assert post(http, BATCH, **{"x-request-timeout": "1"}) == 200
    bodies.assert_freed()


@pytest.mark.parametrize("path", COMPUTED)
def test_a_late_request_holds_nothing(http: httpx.Client, bodies: Bodies, pretended: Any, path: str) -> None:
    pretended.hangs, pretended.faulty_at = True, 1
    assert post(http, path, **{"x-request-timeout": "0.3"}) == 504
    bodies.assert_freed()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        *(pytest.param(*each.values, "", marks=each.marks) for each in COMPUTED),
        ("/v1/completions", ', "stream": true'),
        (BATCH, ""),
    ],
)
def test_a_request_whose_client_leaves_holds_nothing(
    http: httpx.Client, bodies: Bodies, pretended: Any, path: str, more: str
) -> None:
    pretended.hangs, pretended.faulty_at = True, 1
    body = ((BODIES | BATCHES)[path] + more).encode() + b" " * LARGE + b"}"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body)
        del body
        assert pretended.started.wait(60)
        assert bodies.holders()
    assert pretended.was_cancelled.wait(60)
    bodies.assert_freed()
