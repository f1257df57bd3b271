"""Ids, the key and the body limit hold for every route."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from mis_core.config import EngineConfig
from mis_server.edge.middleware import OPEN_PATHS
from mis_server.settings import ServerConfig
from served_app import served_app

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]

KEY = "a-secret-with-ümlaut".encode()


def keyed(key: bytes = KEY) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key}


@pytest.fixture
def guarded(connect: Connect) -> httpx.Client:
    return connect(api_key=KEY.decode())


def test_every_reply_has_its_own_request_id(http: httpx.Client) -> None:
    ids = {http.get(path).headers["x-request-id"] for path in ("/health", "/nowhere", "/v1/models", "/v1/score")}
    assert len(ids) == 4


def test_a_sane_id_of_the_client_is_kept_and_another_replaced(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "trace-1.2_3"}).headers["x-request-id"] == "trace-1.2_3"
    for insane in ("a b", "x" * 65, "<script>"):
        assert http.get("/health", headers={"x-request-id": insane}).headers["x-request-id"] != insane


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/version", "/v1/models"])
def test_head_is_get_without_a_body(http: httpx.Client, path: str) -> None:
    got, head = http.get(path), http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"") == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert http.head("/v1/score").status_code == 405
    assert http.get(path).content  # the connection is still in step


def paths(app: FastAPI) -> Iterator[tuple[str, str]]:
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            yield method.upper(), path.replace("{model_id}", "some/model")
    yield "GET", "/openapi.json"
    yield "GET", "/nowhere"


def test_the_key_guards_every_route_but_the_open_ones(guarded: httpx.Client, pretended: Any, tokenizers: Any) -> None:
    app = served_app(pretended, ServerConfig(engine=EngineConfig(model="m")), tokenizers)
    seen = set()
    for method, path in paths(app):
        seen.add(path)
        status = guarded.request(method, path).status_code
        if path in OPEN_PATHS:
            assert status == 200
        else:
            assert status == 401, path
            assert guarded.request(method, path, headers=keyed()).status_code != 401
    assert {"/v1/score", "/health", "/ready", "/v1/models"} <= seen
    assert set(OPEN_PATHS) == {"/health", "/ready", "/metrics"}
    assert "/playground" not in seen  # it is for people; its test is `routes/test_playground.py`


@pytest.mark.parametrize(
    "path", ["//health", "/health/", "/health/../v1/models", "/%68ealth/x", "/v1/models?x=/health"]
)
def test_no_spelling_of_a_path_gets_around_the_key(guarded: httpx.Client, path: str) -> None:
    with socket.create_connection((guarded.base_url.host, guarded.base_url.port or 80)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer wrong", b"Basic " + KEY, KEY, b"Bearer " + KEY + b"x", b"Bearer \xff"],
)
def test_a_wrong_key_is_refused(guarded: httpx.Client, header: bytes) -> None:
    reply = guarded.get("/v1/models", headers={b"authorization": header})
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]


def test_the_right_key_is_accepted(guarded: httpx.Client, score_body: Body) -> None:
    assert guarded.post("/v1/score", json=score_body(), headers=keyed()).status_code == 200


def test_a_body_of_just_the_limit_passes(connect: Connect, score_body: Body) -> None:
    size = len(httpx.Request("POST", "http://x", json=score_body()).content)
    assert connect(max_body_bytes=size).post("/v1/score", json=score_body()).status_code == 200
    assert connect(max_body_bytes=size - 1).post("/v1/score", json=score_body()).status_code == 413


@pytest.mark.parametrize("announced", [True, False])
def test_a_larger_body_is_refused_and_the_client_can_read_why(connect: Connect, announced: bool) -> None:
    http = connect(max_body_bytes=1_000_000)
    chunk = b" " * 100_000
    content = chunk * 18 if announced else (chunk for _ in range(18))
    reply = http.post("/v1/score", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "request_too_large"
    assert reply.headers["x-request-id"]
