"""Bodies under way have a bound in bytes, and large ones leave room for smaller ones."""

import json
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, RequestError
from mis_server.edge.body import BodyBytes
from mis_server.edge.memory import allowed_memory
from mis_server.settings import ServerConfig

MAX = 1 << 20
HEAD = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
EXPECT = b"expect: 100-continue\r\n"
BODY = {"query": [1, 2], "items": [[3]], "label_token_ids": [4]}
LARGE = json.dumps(BODY).encode().ljust(MAX)

Open = Callable[[bytes], socket.socket]


@pytest.fixture
def http(connect: Callable[..., httpx.Client]) -> httpx.Client:
    return connect(max_body_bytes=MAX, max_body_bytes_under_way=2 * MAX)


@pytest.fixture
def begin(http: httpx.Client) -> Iterator[Open]:
    """`begin(data)`: a connection on which a request has begun."""
    with ExitStack() as stack:

        def send(data: bytes) -> socket.socket:
            address = (http.base_url.host, http.base_url.port or 80)
            connection = stack.enter_context(socket.create_connection(address, timeout=240))
            connection.sendall(data)
            return connection

        yield send


def announcing(size: int) -> bytes:
    return HEAD + EXPECT + b"content-length: %d\r\n\r\n" % size


def held(connection: socket.socket) -> socket.socket:
    """Wait until the server wants the body: then it has kept room for it."""
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    return connection


def chunk(size: int) -> bytes:
    return b"%x\r\n%s\r\n" % (size, b" " * size)


def refusal(connection: socket.socket) -> tuple[bytes, dict[str, str]]:
    """Return the head and the error of a reply."""
    data = b""
    while b"}}" not in data:
        part = connection.recv(65_536)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return head, json.loads(body)["error"]


def post_large(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/score", content=LARGE, headers={"content-type": "application/json"})


def test_endless_large_bodies_leave_room_for_small_ones(http: httpx.Client, begin: Open) -> None:
    held(begin(announcing(MAX))).sendall(b" " * 1000)
    for _ in range(10):
        assert refusal(begin(announcing(MAX)))[1]["code"] == "queue_full"
    reply = post_large(http)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
    assert f"{MAX} bytes of other bodies are under way, so a body may have at most {MAX // 2} now" in reply.text
    assert int(reply.headers["retry-after"]) >= 1
    held(begin(announcing(MAX // 2)))
    for _ in range(3):
        assert http.post("/v1/score", json=BODY).status_code == 200


def test_what_is_larger_than_any_body_may_be_is_told_so(http: httpx.Client, begin: Open) -> None:
    held(begin(announcing(MAX)))
    head, error = refusal(begin(announcing(MAX + 1)))
    assert head.startswith(b"HTTP/1.1 413 ")
    assert error["code"] == "request_too_large"


def test_a_body_of_unannounced_length_is_refused_midway(http: httpx.Client, begin: Open) -> None:
    first = held(begin(announcing(MAX)))
    second = held(begin(HEAD + EXPECT + b"transfer-encoding: chunked\r\n\r\n"))
    second.sendall(chunk(MAX // 4))
    second.sendall(chunk(MAX // 4))
    second.sendall(chunk(1))
    head, error = refusal(second)
    assert head.startswith(b"HTTP/1.1 429 ")
    assert error["code"] == "queue_full"
    first.sendall(LARGE)
    assert first.recv(100).startswith(b"HTTP/1.1 200 ")
    assert post_large(http).status_code == 200


def test_whoever_is_gone_leaves_room(http: httpx.Client, begin: Open) -> None:
    gone = held(begin(announcing(MAX)))
    assert post_large(http).status_code == 429
    gone.close()
    end = time.monotonic() + 240
    while post_large(http).status_code != 200:
        assert time.monotonic() < end


@given(sizes=st.lists(st.integers(0, 100), max_size=30))
def test_held_bytes_stay_within_the_room_and_small_bodies_fit(sizes: list[int]) -> None:
    bodies = BodyBytes(200, 100)
    with ExitStack() as stack:
        for size in sizes:
            if 2 * size <= bodies.most - bodies.used:
                stack.enter_context(bodies.room(size))
            else:
                with pytest.raises(RequestError, match="bodies are under way"):
                    stack.enter_context(bodies.room(size))
            assert bodies.used <= bodies.most
    assert bodies.used == 0
    with bodies.room(100) as room:  # one that is alone always fits
        room.receive(60)
        room.receive(40)
        assert bodies.used == 100
        with bodies.room(None) as other:
            other.receive(50)
            with pytest.raises(RequestError):
                other.receive(1)
            assert bodies.used == 150
    assert bodies.used == 0


def groups(folder: Path, lines: str, limits: dict[str, str]) -> int:
    (folder / "own").write_text(lines)
    for name, text in limits.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return allowed_memory(folder / "own", folder)


@pytest.mark.parametrize(
    ("lines", "limits", "allowed"),
    [
        ("0::/\n", {"memory.max": "4194304\n"}, 4_194_304),  # a container
        ("0::/a/b\n", {"a/memory.max": "8192\n", "a/b/memory.max": "max\n"}, 8192),  # a service in a slice
        ("9:cpu:/\n4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:hugetlb,memory:/gone\n", {"memory/memory.limit_in_bytes": "4096\n"}, 4096),  # version 1, in a container
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_memory_is_what_the_control_group_allows(
    tmp_path: Path, lines: str, limits: dict[str, str], allowed: int | None
) -> None:
    machine = allowed_memory(tmp_path / "none", tmp_path)
    assert machine > 1 << 28
    assert groups(tmp_path, lines, limits) == (machine if allowed is None else allowed)


_KEPT = """
import os, sys
from pathlib import Path
from mis_core.process.heap import return_freed_memory

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

if sys.argv[1] == "True":
    return_freed_memory()
first = bytearray(3 << 20)
del first  # glibc learns from it
before = resident()
bodies, between = [], []
for _ in range(60):
    bodies.append(bytearray(3 << 20))
    between.append(bytes(100_000))
bodies.clear()
sys.stdout.write(str(resident() - before))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose allocator keeps memory")
@pytest.mark.parametrize("gives_back", [True, False])
def test_memory_of_large_bodies_is_given_back(gives_back: bool) -> None:
    command = [sys.executable, "-c", _KEPT, str(gives_back)]
    kept_mib = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (kept_mib < 16) == gives_back


_BETWEEN = """
import asyncio, os, sys
from pathlib import Path
from mis_server.edge.memory import return_memory_between

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

async def main() -> None:
    before = resident()
    blocks = [bytes(10_000) for _ in range(6000)]
    last = bytes(10_000)
    blocks.clear()
    kept = resident() - before
    try:
        await asyncio.wait_for(return_memory_between(0.1), 0.5)
    except TimeoutError:
        sys.stdout.write(f"{kept} {resident() - before}")

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose allocator keeps memory")
def test_memory_between_blocks_that_stay_is_given_back() -> None:
    found = subprocess.run([sys.executable, "-c", _BETWEEN], capture_output=True, text=True, check=True).stdout
    kept_mib, then_mib = map(int, found.split())
    assert kept_mib > 40
    assert then_mib < 10


def test_the_default_follows_from_memory_and_the_largest_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_server.edge.body.allowed_memory", lambda: 1000)
    assert BodyBytes(None, 10).most == 100
    assert BodyBytes(None, 64).most == 128
    assert BodyBytes(777, 64).most == 777
    with pytest.raises(ConfigError, match="at least twice max_body_bytes, 200, not 199") as caught:
        ServerConfig(engine=EngineConfig(model="m"), max_body_bytes=100, max_body_bytes_under_way=199)
    assert caught.value.option == "max_body_bytes_under_way"
