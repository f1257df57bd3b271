"""Whatever happens to the processes and whatever clients do: nothing is lost, nothing leaks, later scores have the
same bits. Every test runs the real processes.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mis_testing.server import RunningServer, running_server

FLAGS = ("--dtype", "float32", "--skip-warmup", "--max-total-tokens", "8192", "--chunked-prefill-size", "256")
PROBE = {"query": list(range(1, 80)), "items": [[i, i + 1, i + 2] for i in range(40)], "label_token_ids": [7, 8]}


def long_body(items: int = 1500, seed: int = 0) -> dict[str, Any]:
    """A request that keeps the engine busy for seconds."""
    rows = [[(i + seed) % 900, i // 900, *range(20)] for i in range(items)]
    return {"query": list(range(1, 200)), "items": rows, "label_token_ids": [7]}


class Asker:
    """Asks one server, each request over its own connection."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.url = server.base_url
        self.pid = server.process.pid

    def post(self, body: Any, path: str = "/v1/score", timeout: float = 240, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, trust_env=False, timeout=timeout, **options)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=240)

    def scores(self) -> list[list[float]]:
        reply = self.post(PROBE)
        assert reply.status_code == 200, reply.text
        return reply.json()["scores"]

    def statistics(self) -> dict[str, float]:
        return self.get("/server_info").json()["statistics"]

    def tokens_under_way(self) -> float:
        line = next(x for x in self.get("/metrics").text.splitlines() if x.startswith("mis_num_tokens_under_way "))
        return float(line.split()[1])

    def is_idle(self) -> bool:
        statistics = self.statistics()
        return statistics["waiting_requests"] == statistics["held_pages"] == self.tokens_under_way() == 0

    def is_computing(self) -> bool:
        return self.statistics().get("held_pages", 0) > 0

    def is_ready(self) -> bool:
        return self.get("/ready").status_code == 200

    def engine_pid(self) -> int:
        return self.server.engine_pid


def until(condition: Callable[[], Any], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def computing(asker: Asker, background: ThreadPoolExecutor, body: dict[str, Any]) -> Future[httpx.Response]:
    """Post a request and wait until it is seen being computed; one that was answered unseen is posted again."""
    while True:
        posted = background.submit(asker.post, body)
        until(lambda posted=posted: asker.is_computing() or posted.done())
        if not posted.done():
            return posted
        assert posted.result().status_code == 200, posted.result().text


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(256) as pool:
        yield pool


@pytest.fixture(scope="module")
def asker(checkpoint: Path) -> Iterator[Asker]:
    """A server for the tests whose faults are the clients'."""
    with running_server(checkpoint, *FLAGS) as server:
        yield Asker(server)
        assert "Traceback" not in server.stderr


@pytest.fixture(scope="module")
def mortal(checkpoint: Path) -> Iterator[Asker]:
    """A server for the tests that kill its processes, the last of them the server's own."""
    with running_server(checkpoint, *FLAGS) as server:
        yield Asker(server)


def check_unavailable(reply: httpx.Response) -> None:
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    assert 0 < int(reply.headers["retry-after"]) <= 60


def test_a_killed_engine_is_replaced_a_repeated_killer_refused(mortal: Asker, background: ThreadPoolExecutor) -> None:
    before = mortal.scores()
    for _ in range(2):
        fatal = computing(mortal, background, long_body(4000))
        os.kill(mortal.engine_pid(), signal.SIGKILL)
        check_unavailable(fatal.result(240))
        assert mortal.get("/health").status_code == 200
        assert mortal.get("/metrics").status_code == 200
        until(mortal.is_ready)
        assert mortal.scores() == before
    engine = mortal.engine_pid()
    reply = mortal.post(long_body(4000))
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.headers["x-should-retry"] == "false"
    assert mortal.post(long_body(300, seed=1)).status_code == 200  # another one is welcome
    assert mortal.scores() == before
    assert mortal.engine_pid() == engine
    assert mortal.is_idle()


def test_an_engine_does_not_outlive_its_front(mortal: Asker, background: ThreadPoolExecutor) -> None:
    """The last test of this server, as it kills it."""
    lost = computing(mortal, background, long_body(4000, seed=2))  # one that has killed no engine
    engine = mortal.engine_pid()
    mortal.server.process.kill()
    with pytest.raises(httpx.TransportError):
        lost.result(240)
    until(lambda: not is_alive(engine))


@pytest.mark.full
def test_a_frozen_engine_is_replaced(checkpoint: Path, background: ThreadPoolExecutor) -> None:
    with running_server(checkpoint, *FLAGS, "--watchdog-timeout", "5") as server:
        asker = Asker(server)
        before = asker.scores()
        frozen = asker.engine_pid()
        os.kill(frozen, signal.SIGSTOP)
        replies = [background.submit(asker.post, PROBE) for _ in range(5)]
        for reply in replies:
            check_unavailable(reply.result(240))
        until(asker.is_ready)
        assert not is_alive(frozen)
        assert asker.scores() == before


def send(asker: Asker, body: Any) -> socket.socket:
    """Send a request and do not wait for the answer."""
    content = json.dumps(body).encode()
    host, port = asker.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + content)
    return connection


def test_clients_that_vanish_leave_nothing_behind(asker: Asker, background: ThreadPoolExecutor) -> None:
    before = asker.scores()
    connections = list(background.map(lambda seed: send(asker, long_body(400, seed)), range(200)))
    until(lambda: asker.statistics()["waiting_requests"] > 20)
    for connection in connections:
        connection.close()
    until(asker.is_idle)
    assert asker.scores() == before


def test_a_full_queue_refuses_and_a_slow_stop_answers_503(checkpoint: Path, background: ThreadPoolExecutor) -> None:
    with running_server(checkpoint, *FLAGS, "--max-queued-requests", "8", "--shutdown-timeout", "1") as server:
        asker = Asker(server)
        want = asker.post(long_body(200)).json()["scores"]
        replies = [each.result() for each in [background.submit(asker.post, long_body(200)) for _ in range(30)]]
        answered = [reply for reply in replies if reply.status_code == 200]
        refused = [reply for reply in replies if reply.status_code == 429]
        assert len(answered) + len(refused) == 30
        assert answered
        assert refused
        assert all(reply.json()["scores"] == want for reply in answered)
        for reply in refused:
            assert reply.json()["error"]["code"] == "queue_full"
            assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert asker.is_idle()
        assert asker.post(long_body(200)).json()["scores"] == want
        slow = computing(asker, background, long_body(20_000))
        server.process.send_signal(signal.SIGTERM)
        check_unavailable(slow.result(240))
        assert server.process.wait(240) == 0
        assert server.stderr.count(" POST /v1/score 503 ") == 1  # what ends with the server is logged, too


def test_a_server_that_is_told_to_stop_answers_what_it_accepted(
    checkpoint: Path, background: ThreadPoolExecutor
) -> None:
    told_to_stop = threading.Event()
    answered: set[int] = set()
    with running_server(checkpoint, *FLAGS) as server:
        asker = Asker(server)
        want = asker.scores()

        def keep_asking(number: int) -> None:
            """Ask until the server is gone; what was asked before the signal must be answered."""
            with httpx.Client(base_url=asker.url, trust_env=False, timeout=240) as client:
                while True:
                    was_told = told_to_stop.is_set()
                    try:
                        reply = client.post("/v1/score", json=PROBE)
                    except httpx.TransportError:
                        assert was_told
                        return
                    if reply.status_code == 503:
                        assert was_told
                    else:
                        assert reply.json()["scores"] == want
                        answered.add(number)

        asking: list[Future[None]] = [background.submit(keep_asking, number) for number in range(16)]
        until(lambda: len(answered) == 16)
        slow = background.submit(asker.post, long_body(800))
        until(lambda: asker.tokens_under_way() > 15_000)
        told_to_stop.set()
        server.process.send_signal(signal.SIGTERM)
        for each in asking:
            each.result(240)
        assert slow.result(240).status_code == 200
        assert server.process.wait(240) == 0
        assert "Traceback" not in server.stderr


def resident_mib(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


DEEP = b'{"query": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"


def test_bodies_that_are_too_much_are_refused_and_harm_nothing(asker: Asker) -> None:
    before = asker.scores()
    memory = resident_mib(asker.pid)
    kind = {"content-type": "application/json"}
    for content, status, code in (
        (b" " * 100_000_000, 413, "request_too_large"),
        (DEEP, 400, "invalid_json"),
        (json.dumps(PROBE | {"items": [[1, 2, 3]] * 100_000}).encode(), 400, "too_many_items"),
        (json.dumps(PROBE | {"items": ["word"] * 100_000}).encode(), 400, "mixed_input_types"),
        (json.dumps(PROBE | {"query": [1] * 3_000_000}).encode(), 400, "context_length_exceeded"),
        (json.dumps(PROBE | {"label_token_ids": [1] * 100_000}).encode(), 400, "too_many_labels"),
        (
            json.dumps(PROBE | {"cache_salt": "x" * 10_000_000, "no" * 100_000: 1}).encode(),
            400,
            "unknown_parameter",
        ),
    ):
        reply = httpx.post(f"{asker.url}/v1/score", content=content, headers=kind, trust_env=False, timeout=240)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        assert len(reply.content) < 1000
    headers = {f"x-{number}": "y" * 1000 for number in range(1000)}
    with contextlib.suppress(httpx.TransportError):
        assert httpx.get(f"{asker.url}/health", headers=headers, trust_env=False).status_code == 400
    assert asker.scores() == before
    assert asker.is_idle()
    assert resident_mib(asker.pid) < memory + 200
