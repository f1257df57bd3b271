"""A request is answered in time or told that it was not; its work ends with its time."""

import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]


def test_the_operators_limit_holds_and_frees_the_work(connect: Connect, pretended: Any, score_body: Body) -> None:
    pretended.hangs = True
    reply = connect(request_timeout=1).post("/v1/score", json=score_body())
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert pretended.was_cancelled.wait(5)


def test_a_client_may_have_less_patience(http: httpx.Client, pretended: Any, score_body: Body) -> None:
    pretended.hangs = True
    began = time.monotonic()
    reply = http.post("/v1/score", json=score_body(), headers={"x-request-timeout": "0.2"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert time.monotonic() - began < 10
    assert pretended.was_cancelled.wait(5)


def test_a_client_may_not_have_more(connect: Connect, pretended: Any, score_body: Body) -> None:
    pretended.hangs = True
    http = connect(request_timeout=1)
    assert http.post("/v1/score", json=score_body(), headers={"x-request-timeout": "inf"}).status_code == 504


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "", "1e400x"])
def test_a_time_that_is_none_is_refused(http: httpx.Client, pretended: Any, score_body: Body, value: str) -> None:
    reply = http.post("/v1/score", json=score_body(), headers={"x-request-timeout": value})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "invalid_request_timeout")
    assert error["param"] == "x-request-timeout"
    assert pretended.requests == []


def test_a_request_in_time_is_answered(http: httpx.Client, score_body: Body) -> None:
    assert http.post("/v1/score", json=score_body(), headers={"x-request-timeout": "20"}).status_code == 200


def test_a_body_that_does_not_arrive_is_given_up(connect: Connect) -> None:
    http = connect(body_timeout=1)
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=20) as connection:
        head = "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
        connection.sendall(f"{head}{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
