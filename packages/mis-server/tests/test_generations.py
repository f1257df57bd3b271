"""Many generations and cancellations on a real server: nothing is lost, nobody is held up, nothing is compiled."""

import asyncio
import json
import random
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mis_testing.server import RunningServer, running_server

PATH = "/v1/completions"
SCORE = {"query": [1, 2, 3], "items": [[4], [5, 6]], "label_token_ids": [7, 8]}


@pytest.fixture(scope="module")
def served(checkpoint: Path) -> Any:
    """A server with a small cache, so that sequences give up pages to others."""
    flags = ("--max-total-tokens", "8192", "--context-length", "2048", "--chunked-prefill-size", "256")
    with running_server(checkpoint, *flags) as server:
        yield server


def metrics(server: RunningServer) -> dict[str, float]:
    text = httpx.get(f"{server.base_url}/metrics", trust_env=False, timeout=60).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def engine_memory(server: RunningServer) -> int:
    """Resident bytes of the server's process and of all that it started."""
    total, parents = 0, {server.process.pid}
    for status in sorted(Path("/proc").glob("[0-9]*/status"), key=lambda path: int(path.parent.name)):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except FileNotFoundError:
            continue
        if int(fields["Pid"]) in parents or int(fields["PPid"]) in parents:
            parents.add(int(fields["Pid"]))
            total += int(fields.get("VmRSS", "0").split()[0]) * 1024
    return total


def wait_until_free(server: RunningServer) -> dict[str, float]:
    for _ in range(600):
        now = metrics(server)
        busy = now["mis_num_tokens_under_way"], now["mis_num_requests_running"], now["mis_kv_cache_held_pages"]
        if not any(busy):
            return now
        time.sleep(0.1)
    pytest.fail(f"tokens under way, requests and held pages that nobody waits for: {busy}")


async def generate(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Ask for text; leave early now and then. Return how many requests were answered whole."""
    prompt = [rng.randrange(400) for _ in range(rng.choice([3, 70, 300]))]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": rng.randint(2, 60), "n": rng.choice([1, 1, 2])}
    body |= {"temperature": rng.choice([0, 1]), "frequency_penalty": rng.choice([0, 0.5]), "stream": True}
    leaves_after = rng.choice([None, None, 0, 1, 5])
    async with client.stream("POST", PATH, json=body) as reply:
        assert reply.status_code == 200
        seen = 0
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                return 1
            if line:
                assert "error" not in json.loads(line.removeprefix("data: "))
                if leaves_after is not None and seen >= leaves_after:
                    return 0
                seen += 1
    raise AssertionError("The stream has no end.")


async def load(server: RunningServer, count: int, seed: int) -> int:
    rngs = [random.Random(f"{seed} {number}") for number in range(count)]
    async with httpx.AsyncClient(base_url=server.base_url, trust_env=False, timeout=300) as client:
        turns = asyncio.Semaphore(24)

        async def one(rng: random.Random) -> int:
            async with turns:
                return await generate(client, rng)

        return sum(await asyncio.gather(*map(one, rngs)))


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.full)])
def test_generations_and_cancellations_leave_nothing_behind(served: RunningServer, count: int) -> None:
    asyncio.run(load(served, 50, seed=0))
    before, memory = wait_until_free(served), engine_memory(served)
    answered = asyncio.run(load(served, count, seed=1))
    after = wait_until_free(served)
    assert 0 < answered < count
    pages = {name: after[f"mis_kv_cache_{name}_pages"] for name in ("cached", "free")}
    assert sum(pages.values()) == after["mis_kv_cache_pages"]
    assert after["mis_engine_compilations_total"] == before["mis_engine_compilations_total"] == 0
    assert after["mis_engine_restarts_total"] == 0
    assert engine_memory(served) < memory + 100e6


def test_sixteen_slow_readers_hold_up_nobody_and_are_freed(served: RunningServer) -> None:
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1500, "ignore_eos": True, "stream": True, "logprobs": 20})
    url = httpx.URL(served.base_url)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    readers = []
    for _ in range(16):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.connect((url.host, url.port))
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        readers.append(reader)
    try:
        with httpx.Client(base_url=served.base_url, trust_env=False, timeout=120) as client:
            score = client.post("/v1/score", json=SCORE)
            text = client.post(PATH, json={"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True})
        assert (score.status_code, text.status_code) == (200, 200)
        assert text.json()["usage"]["completion_tokens"] == 8
    finally:
        for reader in readers:
            reader.close()
    wait_until_free(served)


def test_a_client_that_leaves_ends_its_sequence_within_few_steps(served: RunningServer) -> None:
    before = metrics(served)
    body = {"prompt": [1, 2, 3], "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=served.base_url, trust_env=False, timeout=120) as client,
        client.stream("POST", PATH, json=body) as reply,
    ):
        lines = reply.iter_lines()
        for _ in range(6):
            next(lines)
    freed = wait_until_free(served)
    time.sleep(0.3)
    assert metrics(served)["mis_engine_steps_total"] == freed["mis_engine_steps_total"]
    assert freed["mis_engine_steps_total"] - before["mis_engine_steps_total"] < 1000
