"""What HAProxy itself answers, what it sends a second time, and what it hands through."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from gateway import FILES, Gateway, running_gateway
from mis_server.errors import ERRORS
from mis_testing.server import free_port
from pretended_replica import (
    PretendedReplica,
    hang_up,
    pretended_replica,
    stream_in_two,
    wait_for_the_client_to_leave,
)

BODY = {"query": "q", "items": ["a"], "label_token_ids": [1]}
BEHIND_HEALTH = {"check inter 1s": "check inter 60s"}  # no check notices in time: the next request does


@pytest.fixture
def replicas() -> Iterator[list[PretendedReplica]]:
    with ExitStack() as stack:
        yield [stack.enter_context(pretended_replica()) for _ in range(3)]


def post(gateway: Gateway, body: Any = BODY, **options: Any) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/score", json=body, trust_env=False, verify=False, timeout=60, **options)


def check_error(reply: httpx.Response, status: int, code: str) -> None:
    """As `docs/reference/http/errors.md` has it; 502 tells apart what a replica had begun."""
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.headers["content-type"] == "application/json"
    assert (503 if status == 502 else status, error["type"]) == ERRORS[code]
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", reply.headers["x-request-id"])
    if status == 429 or status >= 500:
        assert int(reply.headers["retry-after"]) >= 1


def test_every_error_that_haproxy_makes_is_one_of_ours() -> None:
    text = (FILES / "haproxy.cfg").read_text()
    made = re.findall(r"http-error status (\d+) .*?'(.*?)'(.*)", text)
    assert {int(status) for status, _, _ in made} >= {400, 408, 429, 500, 502, 503, 504}
    for status, content, rest in made:
        error = json.loads(content)["error"]
        assert ERRORS[error["code"]] == (503 if status == "502" else int(status), error["type"])
        assert ("retry-after" in rest) == (status == "429" or status >= "500")


def test_without_a_replica_the_gateway_lives_and_sends_our_error() -> None:
    with running_gateway([f"http://127.0.0.1:{free_port()}"]) as gateway:
        gateway.wait_until(replica_1="DOWN")
        check_error(post(gateway), 503, "engine_unavailable")
        check_error(httpx.get(f"{gateway.url}/ready", trust_env=False, verify=False), 503, "engine_unavailable")
        assert httpx.get(f"{gateway.url}/health", trust_env=False, verify=False).json() == {"status": "ok"}
        for path in ("/metrics", "/flush_cache", "/start_profile", "/load", "/server_info"):
            check_error(httpx.get(f"{gateway.url}{path}", trust_env=False, verify=False), 404, "not_found")


def test_a_request_whose_replica_ends_is_not_sent_again(replicas: list[PretendedReplica]) -> None:
    for each in replicas:
        each.behave = hang_up
    with running_gateway([each.url for each in replicas]) as gateway:
        check_error(post(gateway), 502, "engine_unavailable")
    assert sum(len(each.bodies) for each in replicas) == 1


def test_what_could_not_be_sent_goes_to_another_replica_at_once(replicas: list[PretendedReplica]) -> None:
    addresses = [f"http://127.0.0.1:{free_port()}", replicas[1].url, f"http://127.0.0.1:{free_port()}"]
    with running_gateway(addresses, changes=BEHIND_HEALTH) as gateway:
        bodies = [{**BODY, "query": f"{number}"} for number in range(40)]
        assert {post(gateway, body).status_code for body in bodies} == {200}
        gateway.wait_until(replica_1="DOWN", replica_3="DOWN")
    assert [json.loads(body) for body in replicas[1].bodies] == bodies


def test_a_replica_that_is_not_ready_is_not_asked(replicas: list[PretendedReplica]) -> None:
    with running_gateway([each.url for each in replicas], changes={"uri /ready": "uri /nothing"}) as gateway:
        assert post(gateway).status_code == 200
    with running_gateway(
        [each.url for each in replicas], changes={"status 200\n    default": "status 503\n    default"}
    ) as gateway:
        gateway.wait_until(replica_1="DOWN", replica_2="DOWN", replica_3="DOWN")
        check_error(post(gateway), 503, "engine_unavailable")


def test_refusals_of_a_replica_come_through(replicas: list[PretendedReplica]) -> None:
    for each in replicas:
        each.behave = lambda handler: handler.reply(b'{"error": "full"}', 429, retry_after="17")
    with running_gateway([each.url for each in replicas]) as gateway:
        reply = post(gateway)
    assert (reply.status_code, reply.headers["retry-after"], reply.json()) == (429, "17", {"error": "full"})
    assert sum(len(each.bodies) for each in replicas) == 1


def test_beyond_its_own_limit_the_gateway_answers_429(replicas: list[PretendedReplica]) -> None:
    for each in replicas:
        each.behave = lambda handler, each=each: (each.go_on.wait(60), handler.reply(b"{}"))
    with running_gateway([each.url for each in replicas], MIS_GATEWAY_MAX_REQUESTS="2") as gateway:
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(post, gateway, {**BODY, "query": str(number)}) for number in range(2)]
            while sum(len(each.bodies) for each in replicas) < 2:
                pass
            check_error(post(gateway), 429, "queue_full")
            for each in replicas:
                each.go_on.set()
            assert [each.result().status_code for each in waiting] == [200, 200]
        assert post(gateway).status_code == 200


def test_late_and_malformed_requests_get_our_errors(replicas: list[PretendedReplica]) -> None:
    changes = {"timeout http-request 60s": "timeout http-request 200ms", "timeout server 630s": "timeout server 200ms"}
    replicas[0].behave = wait_for_the_client_to_leave(replicas[0])
    with running_gateway([replicas[0].url], changes=changes) as gateway:
        check_error(post(gateway), 504, "deadline_exceeded")
        late = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
        check_error(raw(gateway, late), 408, "request_timeout")
        assert raw(gateway, b"POST /v1/score HTTP/1.1\r\nhost x\r\n\r\n").status_code == 400  # its own page


def raw(gateway: Gateway, sent: bytes) -> httpx.Response:
    """Send bytes, read until the other side closes."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(sent)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return httpx.Response(int(first.split()[1]), headers=headers, content=body)


def test_ids_of_requests_go_both_ways(replicas: list[PretendedReplica]) -> None:
    replicas[0].behave = lambda handler: handler.reply(b"{}", x_seen=handler.headers["x-request-id"])
    with running_gateway([replicas[0].url]) as gateway:
        given = post(gateway, headers={"x-request-id": "mine-1"})
        assert (given.headers["x-request-id"], given.headers["x-seen"]) == ("mine-1", "mine-1")
        own, other = post(gateway), post(gateway, headers={"x-request-id": "no good"})
        assert own.headers["x-request-id"] == own.headers["x-seen"] != other.headers["x-request-id"]
        assert other.headers["x-request-id"] == other.headers["x-seen"] != "no good"


def test_a_stream_arrives_as_it_is_sent(replicas: list[PretendedReplica]) -> None:
    replicas[0].behave = stream_in_two(replicas[0])
    with (
        running_gateway([replicas[0].url]) as gateway,
        httpx.stream(
            "POST", f"{gateway.url}/v1/completions", json={"prompt": "p"}, trust_env=False, verify=False, timeout=30
        ) as reply,
    ):
        parts = reply.iter_bytes()
        assert next(parts) == b"data: one\n\n"
        replicas[0].go_on.set()
        assert b"".join(parts) == b"data: two\n\n"


def test_a_client_that_leaves_frees_its_replica(replicas: list[PretendedReplica]) -> None:
    replicas[0].behave = wait_for_the_client_to_leave(replicas[0])
    with running_gateway([replicas[0].url]) as gateway:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{gateway.url}/v1/score", json=BODY, trust_env=False, verify=False, timeout=0.5)
        assert replicas[0].lost.wait(60)


def test_a_drained_replica_ends_what_it_has_and_gets_nothing_new(replicas: list[PretendedReplica]) -> None:
    with running_gateway([each.url for each in replicas]) as gateway:
        home = int(post(gateway).headers["x-mis-replica"].removeprefix("replica-")) - 1
        replica = replicas[home]
        replica.behave = lambda handler: (replica.go_on.wait(60), handler.reply(b"{}"))
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(post, gateway)
            while len(replica.bodies) < 2:
                pass
            gateway.command(f"set server replicas/replica-{home + 1} state drain")
            assert post(gateway).headers["x-mis-replica"] != f"replica-{home + 1}"
            replica.go_on.set()
            assert waiting.result().headers["x-mis-replica"] == f"replica-{home + 1}"
        gateway.command(f"set server replicas/replica-{home + 1} state ready")
        assert post(gateway).headers["x-mis-replica"] == f"replica-{home + 1}"


@pytest.mark.parametrize("size", [1_000, 300_000, 3_000_000])
@pytest.mark.parametrize("headers", [{}, {"expect": "100-continue"}])
def test_bodies_of_any_size_arrive_whole(size: int, headers: dict[str, str], replicas: list[PretendedReplica]) -> None:
    body = {**BODY, "items": ["i" * size]}
    with running_gateway([each.url for each in replicas]) as gateway:
        assert post(gateway, body, headers=headers).status_code == 200
        post(gateway, {"items": ["i" * size], "query": "q"})
        assert gateway.keys() == {"header": 0, "query": 1 + (size < 10_000), "unseen": size > 10_000, "absent": 0}
    assert json.loads(next(each.bodies[0] for each in replicas if each.bodies))["items"][0] == "i" * size
