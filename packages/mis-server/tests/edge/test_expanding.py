"""Compressed bodies: what is read is what was sent, and what one costs is known before it is paid."""

import asyncio
import gzip
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_core.errors import RequestError
from mis_server.edge.expanding import ExpandingMiddleware
from mis_server.schemas.system_one import PATHS

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]

MOST = 1 << 26
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, mtime=0),
    "x-gzip": partial(gzip.compress, mtime=0),
    "GZIP": partial(gzip.compress, mtime=0),
    "zstd": zstd.compress,
}
of_each_encoding = pytest.mark.parametrize("encoding", COMPRESS)
SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"  # RFC 8878, section 3.1.2


def post(http: httpx.Client, content: Any, encoding: str, path: str = "/v1/score") -> httpx.Response:
    return http.post(path, content=content, headers={"content-type": "application/json", "content-encoding": encoding})


def expanded(content: bytes, encoding: str, most: int = MOST, step: int = 1000) -> bytes:
    """What an application receives of a compressed body that arrives in parts."""
    parts = [content[begin : begin + step] for begin in range(0, len(content), step)] or [b""]
    messages = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]
    found = bytearray()

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert [name for name, _ in scope["headers"]] == [b"a"]
        message = {"more_body": True}
        while message["more_body"]:
            message = await receive()
            found.extend(message["body"])

    headers = [(b"content-encoding", encoding.encode()), (b"content-length", b"9"), (b"a", b"b")]
    scope = {"type": "http", "path": "/", "headers": headers}
    asyncio.run(ExpandingMiddleware(app, most)(scope, receive, send))
    return bytes(found)


@of_each_encoding
def test_a_compressed_body_is_answered_like_the_uncompressed_one(
    http: httpx.Client, score_body: Body, encoding: str
) -> None:
    body = json.dumps(score_body()).encode()
    plain, packed = post(http, body, "identity"), post(http, COMPRESS[encoding](body), encoding)
    assert packed.status_code == 200, packed.text
    assert packed.json()["scores"] == plain.json()["scores"]


@given(
    parts=st.lists(st.binary(max_size=3000) | st.just(b"ab" * 5000), min_size=1, max_size=4),
    step=st.integers(1, 3000),
    encoding=st.sampled_from(["gzip", "zstd"]),
)
def test_frames_one_behind_the_other_are_one_body(parts: list[bytes], step: int, encoding: str) -> None:
    content = b"".join(COMPRESS[encoding](part) for part in parts)
    assert expanded(content, encoding, step=step) == b"".join(parts)


def test_skippable_frames_are_skipped() -> None:
    content = SKIPPABLE + zstd.compress(b"one") + SKIPPABLE * 2 + zstd.compress(b" two") + SKIPPABLE
    for step in (1, 7, 1000):
        assert expanded(content, "zstd", step=step) == b"one two"


@of_each_encoding
def test_a_large_body_is_expanded_part_by_part(encoding: str) -> None:
    body = json.dumps([[number * 7919 % 50_000 for number in range(200_000)]]).encode()
    assert len(body) > 1 << 20
    assert expanded(COMPRESS[encoding](body), encoding, step=65536) == body


def with_checksum(body: bytes) -> bytes:
    return zstd.compress(body, options={zstd.CompressionParameter.checksum_flag: 1})


def damaged() -> Iterator[tuple[str, bytes]]:
    body = json.dumps({"query": [1] * 500}).encode()
    for encoding, compress in (("gzip", COMPRESS["gzip"]), ("zstd", with_checksum)):
        good = compress(body)
        yield encoding, good[:-5]
        yield encoding, body
        yield encoding, good + b"trailing"
        yield encoding, good[:12] + bytes(each ^ 0xFF for each in good[12:16]) + good[16:]
    yield "zstd", COMPRESS["gzip"](body)
    yield "gzip", zstd.compress(body)
    yield "zstd", SKIPPABLE[:10]


@pytest.mark.parametrize(("encoding", "content"), [*damaged()])
def test_what_is_damaged_is_said(http: httpx.Client, pretended: Any, encoding: str, content: bytes) -> None:
    reply = post(http, content, encoding)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_content_encoding")
    reply = post(http, content, encoding, PATHS[0])
    assert (reply.status_code, reply.json()["detail"]["code"]) == (400, "invalid_content_encoding")
    assert pretended.requests == []


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "gzip, gzip", "zstd,identity", "nonsense"])
def test_other_encodings_and_several_are_refused(http: httpx.Client, encoding: str) -> None:
    reply = post(http, b"x", encoding)
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert reply.headers["accept-encoding"] == "gzip, zstd"
    assert "gzip or zstd" in reply.json()["error"]["message"]


@of_each_encoding
def test_the_limit_counts_expanded_bytes(connect: Connect, score_body: Body, encoding: str) -> None:
    body = json.dumps(score_body()).encode()
    size = len(body)
    content = COMPRESS[encoding](body)
    http = connect(max_body_bytes=max(size, len(content)))
    assert post(http, content, encoding).status_code == 200
    larger = COMPRESS[encoding](body + b" " * (max(size, len(content)) - size + 1))
    reply = post(http, larger, encoding)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_large_as_it_is_sent_is_refused(connect: Connect, announced: bool) -> None:
    http = connect(max_body_bytes=100_000)
    parts = [SKIPPABLE * 1000] * 15  # expands to nothing
    reply = post(http, b"".join(parts) if announced else iter(parts), "zstd")
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@of_each_encoding
def test_a_body_that_expands_too_many_times_is_refused(encoding: str) -> None:
    assert len(expanded(COMPRESS[encoding](b" " * (1 << 20)), encoding)) == 1 << 20  # small enough, whatever the ratio
    with pytest.raises(RequestError, match="200 times") as refused:
        expanded(COMPRESS[encoding](b" " * (1 << 24)), encoding)
    assert refused.value.code == "request_too_large"


def bomb(gigabytes: int) -> bytes:
    compressor = zstd.ZstdCompressor()
    block = b"\0" * (1 << 20)
    return b"".join(compressor.compress(block) for _ in range(gigabytes << 10)) + compressor.flush()


@pytest.mark.parametrize("gigabytes", [1, pytest.param(10, marks=pytest.mark.full)])
def test_a_bomb_costs_little_memory(gigabytes: int) -> None:
    content = bomb(gigabytes)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            expanded(content, "zstd", step=65536)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_window_above_8_mib_is_refused() -> None:
    def with_window(log: int) -> bytes:
        options = {zstd.CompressionParameter.window_log: log, zstd.CompressionParameter.content_size_flag: 0}
        compressor = zstd.ZstdCompressor(options=options)
        return compressor.compress(b"x" * 1000) + compressor.flush()

    assert expanded(with_window(23), "zstd") == b"x" * 1000
    with pytest.raises(RequestError, match="window") as refused:
        expanded(with_window(24), "zstd")
    assert refused.value.code == "request_too_large"


@pytest.mark.parametrize("frame", [zstd.compress(b""), SKIPPABLE])
def test_a_body_of_very_many_frames_is_refused(frame: bytes) -> None:
    assert expanded(frame * 4000, "zstd") == b""
    with pytest.raises(RequestError, match="4096 compressed frames"):
        expanded(frame * 5000, "zstd")
