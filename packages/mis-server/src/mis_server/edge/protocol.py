"""HTTP/1.1: uvicorn's, with timeouts for slow clients and our error envelope for malformed requests."""

import asyncio
import uuid
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mis_server.errors import error_reply

CONNECTION_LOST = "mis.connection_lost"
"""Name of an ASGI extension: a future that is done when the client is gone. Waiting for `http.disconnect` would take a
task per request."""

HEADER_TIMEOUT_S = 20.0
"""The headers of a request must be complete this long after the connection or after the request's first byte."""

HEADER_BYTES = 65_536
"""Maximum size of a request line with its headers."""

WRITE_TIMEOUT_S = 30.0
"""A client that reads nothing of its reply for this long is disconnected."""

LATE_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes of a body that are read and discarded after the reply, before the connection is closed: many
clients read a refusal only after they have sent the whole body."""

_CODINGS = ([], [b"chunked"])


class _Gathering:
    """A transport that writes once per iteration of the event loop: head and body of a reply in one system call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this iteration."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def close(self) -> None:
        """Write what is buffered, then close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def flush(self) -> None:
        """Write now."""
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # uvloop raises where asyncio discards
            self._transport.write(b"".join(parts))


class Protocol(HttpToolsProtocol):
    """Closes the connections of clients that send or read too slowly."""

    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of the reply at the last check
    _in_body = False  # between a request's headers and its end
    _head_bytes = 0  # received, of a request whose headers are not complete
    _header_bytes = 0  # of the current request's headers
    _late_bytes = 0  # of its body, received after its reply

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request."""
        super().connection_made(cast(Any, _Gathering(transport, self.loop)))
        self._lost: asyncio.Future[None] = self.loop.create_future()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request, or several requests."""
        self._unset_keepalive_if_required()
        unread = data
        while unread:
            unread = self._parse(unread)
        self._watch()

    def _parse(self, data: bytes) -> bytes:
        """Parse; return what a new parser has to read, after an offer of another protocol was declined."""
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            return self._without_offer(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")
        else:
            if self._head_bytes > HEADER_BYTES:
                self.send_400_response("")
        return b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header; uvicorn's parser has no limit on their size.

        Raises:
            ValueError: the headers are too large.
        """
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("The headers are too large.")
        super().on_header(name, value)

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION_LOST: cast(Any, self._lost)}
        self._header_bytes = self._late_bytes = 0

    def on_headers_complete(self) -> None:
        """Start to answer a request.

        Raises:
            ValueError: HTTP/1.1 without exactly one `Host` (RFC 9112, 3.2); a transfer coding that is not exactly one
                `chunked`, on whose end a proxy might disagree (6.1); or CONNECT, which is for proxies.
        """
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("A request must have exactly one Host header.")
        if [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"] not in _CODINGS:
            raise ValueError("The only transfer coding is chunked, once.")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("CONNECT is not supported.")
            return  # read again without the offer, see `_without_offer`
        self._head_bytes, self._in_body = 0, True
        super().on_headers_complete()
        if self.scope["http_version"] != "1.1":
            _send_without_chunks(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body; after the reply, up to `LATE_BYTES`."""
        super().on_body(body)
        if self.cycle is not None and self.cycle.response_complete:
            self._late_bytes += len(body)
            if self._late_bytes > LATE_BYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        """Finish receiving a request."""
        if not self.parser.should_upgrade():
            self._in_body = False
            super().on_message_complete()
            if not self.pipeline:
                self.flow.resume_reading()  # a large body paused it; only reading notices that a client is gone

    def _without_offer(self, rest: bytes) -> bytes:
        """Return the request without its offer of another protocol (RFC 9110, 7.8), for a new parser to read.

        Java's client, for example, offers HTTP/2.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""]) + rest

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        self._stop_watching()
        self._stop_check()
        self._lost.set_result(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start to watch a client that reads more slowly than the reply is written."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(WRITE_TIMEOUT_S, self._check_reading)

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self._stop_check()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once if its last reply was not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _check_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._stalled = self.loop.call_later(WRITE_TIMEOUT_S, self._check_reading)

    def _stop_check(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _watch(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._in_body or (is_answering and not self._head_bytes):
            self._stop_watching()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_TIMEOUT_S, self._on_headers_late)

    def _stop_watching(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _on_headers_late(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, or one with too large headers, and close the connection."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # in the middle of another reply
            return
        reply = error_reply("invalid_http", "This is not a valid HTTP/1.1 request, or its headers are too large.")
        headers = [*reply.raw_headers, (b"x-request-id", uuid.uuid4().hex.encode()), (b"connection", b"close")]
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%s: %s" % header for header in headers), b"", bytes(reply.body)]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """Let the end of the connection end a reply: clients before HTTP/1.1 know no chunks (RFC 9112, 7.1)."""
    send = cycle.send

    async def send_piece(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))  # what uvicorn allows of a body with a length
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = send_piece
