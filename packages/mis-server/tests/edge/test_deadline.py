"""A request is answered in time or told that it was not; its work ends with its time."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError
from mis_server.edge.admission import deadline
from mis_server.edge.protocol import CONNECTION_LOST

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_operators_limit_holds_and_frees_the_work(connect: Connect, pretended: Any, score_body: Body) -> None:
    pretended.hangs = True
    reply = connect(request_timeout=1).post("/v1/score", json=score_body())
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert pretended.was_cancelled.wait(60)


def test_a_client_may_ask_for_an_earlier_deadline(http: httpx.Client, pretended: Any, score_body: Body) -> None:
    pretended.hangs = True
    reply = http.post("/v1/score", json=score_body(), headers={"x-request-timeout": "0.2"})  # the server's is 300
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert pretended.was_cancelled.wait(60)


def test_a_client_may_not_ask_for_a_later_one(connect: Connect, pretended: Any, score_body: Body) -> None:
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


@pytest.mark.parametrize("path", ["/v1/score", "/tokenize"])
def test_a_body_that_does_not_arrive_is_given_up(connect: Connect, path: str) -> None:
    http = connect(body_timeout=1)
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=120) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
        connection.sendall(f"{head}{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_slow_bodies_keep_nobody_out(connect: Connect, score_body: Body) -> None:
    http = connect(max_queued_requests=4, body_timeout=60)
    head = b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            address = (http.base_url.host, http.base_url.port or 80)
            stack.enter_context(socket.create_connection(address, timeout=120)).sendall(head)
        assert http.get("/ready").status_code == 200
        assert http.post("/v1/score", json=score_body()).status_code == 200


def test_a_body_in_time_does_not_end_the_work(connect: Connect, pretended: Any, score_body: Body) -> None:
    pretended.hangs = True
    reply = connect(body_timeout=1, request_timeout=2).post("/v1/score", json=score_body())
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")  # not 408


@pytest.mark.parametrize(
    ("seconds", "body_s", "code"),
    [(0.0333, 30, "deadline_exceeded"), (0.05, 0.05, "deadline_exceeded"), (30, 0.0333, "request_timeout")],
)
def test_the_time_that_is_over_is_named(seconds: float, body_s: float, code: str) -> None:
    uvloop = pytest.importorskip("uvloop")  # it counts milliseconds

    async def work() -> None:
        for _ in range(20):
            limit, _ = deadline_of(seconds, body_s)
            with pytest.raises(RequestError) as caught:
                async with limit:
                    await asyncio.sleep(60)
            assert caught.value.code == code

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


def deadline_of(seconds: float = 60, body_s: float = 60) -> tuple[Any, asyncio.Future[None]]:
    lost = asyncio.get_running_loop().create_future()
    return deadline(Request({"type": "http", "extensions": {CONNECTION_LOST: lost}}), seconds, body_s), lost


@pytest.mark.anyio
async def test_a_client_that_leaves_at_the_last_moment_harms_nothing() -> None:
    limit, lost = deadline_of()
    async with limit:
        lost.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_a_client_that_leaves_a_moment_earlier_ends_the_work() -> None:
    async def work() -> None:
        limit, lost = deadline_of()
        async with limit:
            lost.set_result(None)
            await asyncio.sleep(60)

    with pytest.raises(ClientDisconnect):
        await work()


@pytest.mark.anyio
async def test_the_first_reason_counts() -> None:
    limit, lost = deadline_of(seconds=0)

    async def work() -> None:
        async with limit:
            try:
                await asyncio.sleep(60)
            finally:
                lost.set_result(None)

    with pytest.raises(RequestError, match="within 0 s"):
        await work()
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_who_cancels_the_task_is_heard() -> None:
    async def work() -> None:
        limit, lost = deadline_of()
        async with limit:
            lost.set_result(None)
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.anyio
async def test_work_may_fail_by_itself_while_it_is_given_up() -> None:
    async def work() -> None:
        limit, lost = deadline_of()
        async with limit:
            lost.set_result(None)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise KeyError from None

    with pytest.raises(KeyError):
        await work()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
