"""Clients that are slow or do not speak HTTP hold nothing for long and learn what was wrong."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from mis_server.edge import protocol

Open = Callable[[], socket.socket]


@pytest.fixture
def open_socket(http: httpx.Client) -> Iterator[Open]:
    with ExitStack() as stack:
        address = (http.base_url.host, http.base_url.port or 80)
        yield lambda: stack.enter_context(socket.create_connection(address, timeout=120))


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def envelope(reply: bytes) -> dict[str, str]:
    return json.loads(reply.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    "flood",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(1000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 2_000_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS, to a port without
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: [::1]\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: [::1]\r\nhost: y\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: [::1]\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["headers", "header", "path", "tls", "nonsense", "negative", "two lengths", "length of chunks",
         "two encodings", "chunks twice", "gzip in chunks", "no host", "two hosts", "proxy", "http/2"],
)  # fmt: skip
def test_what_is_not_http_gets_the_envelope(http: httpx.Client, open_socket: Open, flood: bytes) -> None:
    connection = open_socket()
    try:
        connection.sendall(flood)
        reply = read_all(connection)
    except ConnectionError:  # closed while the flood was still coming
        reply = b""
    if reply:
        assert reply.startswith(b"HTTP/1.1 400 Bad Request")
        assert envelope(reply)["code"] == "invalid_http"
        assert b"x-request-id: " in reply
    else:
        assert len(flood) > 100_000
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offered_upgrade_is_declined_and_the_request_answered(open_socket: Open, is_chunked: bool) -> None:
    body = b'{"query": [1], "items": [[2]], "label_token_ids": [3]}'
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(body)
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    head = (
        b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\n"
        + offer
        + b"content-type: application/json\r\n"
        + framing
        + b"\r\n\r\n"
    )
    last = b"GET /health HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n"
    connection = open_socket()
    connection.sendall(head)
    time.sleep(0.2)  # the body comes later, as Java's client sends it
    connection.sendall(framed + head + framed)
    connection.sendall(last)
    replies = read_all(connection)
    assert replies.count(b"HTTP/1.1 200 OK") == 3
    assert replies.count(b'"object":"scoring"') == 2


def test_any_number_of_offers_in_one_packet_is_declined(open_socket: Open, caplog: pytest.LogCaptureFixture) -> None:
    offer = b"GET /health HTTP/1.1\r\nHost: [::1]\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    connection = open_socket()
    connection.sendall(offer * 500 + b"GET /health HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n")
    assert read_all(connection).count(b"HTTP/1.1 200 OK") == 501
    assert "RecursionError" not in caplog.text


@pytest.mark.parametrize("head", [b"POST /v1/score", b"GET /health"])
def test_a_body_is_not_read_for_ever_after_its_reply(connect: Callable[..., httpx.Client], head: bytes) -> None:
    """Its request is answered at once, with 401 or without a look at the body."""
    base = connect(api_key="secret").base_url
    sent, part = 0, bytes(1 << 20)
    with socket.create_connection((base.host, base.port or 80), timeout=120) as connection:
        connection.sendall(head + b" HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 10000000000\r\n\r\n")
        assert connection.recv(100).startswith((b"HTTP/1.1 401", b"HTTP/1.1 200"))
        with contextlib.suppress(ConnectionError):
            while sent < 200 * len(part):
                connection.sendall(part)
                sent += len(part)
    assert sent < 100 * len(part)


def test_a_body_that_is_too_large_is_not_invited(connect: Callable[..., httpx.Client]) -> None:
    base = connect(max_body_bytes=1000).base_url
    with socket.create_connection((base.host, base.port or 80), timeout=120) as connection:
        head = b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
        connection.sendall(head + b"content-length: 1001\r\n\r\n")
        reply = read_all(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert envelope(reply)["code"] == "request_too_large"


def test_a_client_may_finish_a_refused_body_of_some_size(connect: Callable[..., httpx.Client]) -> None:
    http = connect(api_key="secret")
    for _ in range(2):
        assert http.post("/v1/score", content=bytes(40 << 20)).status_code == 401
    assert http.get("/health").status_code == 200


def test_headers_that_do_not_end_close_the_connection(
    http: httpx.Client, open_socket: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.5)
    slow = [open_socket() for _ in range(50)]
    for connection in slow:
        connection.sendall(b"POST /v1/score HTTP/1.1\r\nx: ")
    assert http.get("/health").status_code == 200  # nobody waits for them
    began = time.monotonic()
    while slow and time.monotonic() - began < 10:  # one byte now and then is no way around
        time.sleep(0.1)
        slow = [connection for connection in slow if is_open(connection)]
    assert slow == []


def is_open(connection: socket.socket) -> bool:
    """Send one byte; whether the connection still takes it."""
    try:
        connection.sendall(b"y")
        connection.setblocking(False)
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.setblocking(True)


def test_a_silent_connection_is_closed(http: httpx.Client, open_socket: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.3)
    assert read_all(open_socket()) == b""


def test_a_kept_connection_may_rest_and_go_on(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.3)
    assert http.get("/health").status_code == 200
    time.sleep(0.6)
    assert http.get("/health").status_code == 200


def test_a_client_that_does_not_read_its_reply_is_cut_off(
    connect: Callable[..., httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "WRITE_TIMEOUT_S", 0.5)
    base = connect().base_url
    body = json.dumps({"query": [1], "items": [[2]] * 20_000, "label_token_ids": list(range(100))}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(120)
        connection.connect((base.host, base.port or 80))
        head = (
            f"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        started = connection.recv(15)
        assert started == b"HTTP/1.1 200 OK"
        time.sleep(3)
        received = len(started)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                received += len(part)
    assert received < 20_000_000


def test_a_slow_reader_gets_the_whole_reply(
    connect: Callable[..., httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "WRITE_TIMEOUT_S", 0.5)
    body = {"query": [1], "items": [[2]] * 5000, "label_token_ids": list(range(100))}
    received = bytearray()
    with connect().stream("POST", "/v1/score", json=body) as reply:
        for part in reply.iter_bytes(200_000):
            received += part
            time.sleep(0.05)
    assert len(json.loads(received)["scores"]) == 5000


@pytest.mark.parametrize("kept", [b"", b"connection: keep-alive\r\n"], ids=["closed", "asks to keep"])
def test_a_stream_over_http_1_0_has_no_chunks_and_then_closes(
    http: httpx.Client, open_socket: Open, kept: bytes
) -> None:
    body = {"prompt": "Do cats purr?", "max_tokens": 4, "stream": True}
    streamed = http.post("/v1/completions", json=body)
    assert streamed.headers["transfer-encoding"] == "chunked"  # HTTP/1.1 has chunks, which httpx takes away
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(content)
    connection = open_socket()
    connection.sendall(head + kept + b"\r\n" + content)
    head, _, events = read_all(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    lines = events.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[:-1])
    assert len(lines) == len(streamed.text.split("\n\n"))


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_an_older_client_gets_a_reply_with_its_length(http: httpx.Client, open_socket: Open, method: bytes) -> None:
    connection = open_socket()
    connection.sendall(method + b" /health HTTP/1.0\r\n\r\n")
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    expected = http.get("/health")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: " + expected.headers["content-length"].encode() in head
    assert body == (b"" if method == b"HEAD" else expected.content)
