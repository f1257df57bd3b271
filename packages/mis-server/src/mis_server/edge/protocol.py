"""HTTP/1.1 as uvicorn speaks it, with an end to clients that send nothing, and our envelope for broken requests."""

import asyncio
import uuid
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mis_server.errors import error_reply

CONNECTION_LOST = "mis.connection_lost"
"""Name of an ASGI extension: a future that is done when the client is gone. Waiting for `http.disconnect` takes a task
for each request."""

HEADER_TIMEOUT_S = 20.0
"""Within this time of connecting, and of the first byte of a further request, its headers must be complete."""

HEADER_BYTES = 65_536
"""Most bytes of a request's first line and headers."""

WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing of its reply for so long is cut off."""

LATE_BYTES = 64 * 1024 * 1024
"""Most bytes of a body that are read and thrown away once its request is answered: many clients read a refusal only
after they have sent all. Then the connection is closed."""


class _Gathering:
    """A transport that writes once per turn of the event loop: a reply's head and body in one packet, one call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def close(self) -> None:
        """Write what is left, then close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def flush(self) -> None:
        """Write now."""
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # uvloop refuses what asyncio throws away
            self._transport.write(b"".join(parts))


class Protocol(HttpToolsProtocol):
    """Closes connections whose headers do not arrive in time; a slow client holds a socket, never a worker."""

    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of the reply, when last looked at
    _in_body = False  # between a request's headers and its end
    _head_bytes = 0  # received of a request whose headers are not complete
    _header_bytes = 0  # of its complete headers
    _late_bytes = 0  # of its body, after its reply

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(cast(Any, _Gathering(transport, self.loop)))
        self._lost: asyncio.Future[None] = self.loop.create_future()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, or several requests."""
        self._unset_keepalive_if_required()
        unread = data
        while unread:
            unread = self._parse(unread)
        self._watch()

    def _parse(self, data: bytes) -> bytes:
        """Parse; return what another parser has to read, after an offer that is declined."""
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
        """Take a header; uvicorn's parser sets no limit to them.

        Raises:
            ValueError: the headers are too large.
        """
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("The headers are too large.")
        super().on_header(name, value)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION_LOST: cast(Any, self._lost)}
        self._header_bytes = self._late_bytes = 0

    def on_headers_complete(self) -> None:
        """Begin to answer a request.

        Raises:
            ValueError: HTTP/1.1 without exactly one host (RFC 9112, 3.2), or a method that this is no server for.
        """
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("A request names one host.")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("This is no proxy.")
            return  # read again without the offer, see `_without_offer`
        self._head_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body; of a request that is answered already, so much and no more."""
        super().on_body(body)
        if self.cycle is not None and self.cycle.response_complete:
            self._late_bytes += len(body)
            if self._late_bytes > LATE_BYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        if not self.parser.should_upgrade():
            self._in_body = False
            super().on_message_complete()
            if not self.pipeline:
                self.flow.resume_reading()  # paused by a large body; a client that leaves is noticed by reading

    def _without_offer(self, rest: bytes) -> bytes:
        """Return a request without its offer of another protocol (RFC 9110, 7.8), to be read by a new parser.

        Java's client offers HTTP/2.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""]) + rest

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_watching()
        self._stop_check()
        self._lost.set_result(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Take note that the client reads more slowly than it is written to."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(WRITE_TIMEOUT_S, self._check_reading)

    def resume_writing(self) -> None:
        """Take note that it has caught up."""
        super().resume_writing()
        self._stop_check()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nobody uses, at once if its last reply was not even read."""
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
            self._waiting = self.loop.call_later(HEADER_TIMEOUT_S, self._give_up)

    def _stop_watching(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or whose headers are too large, and close the connection."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # another reply is half sent
            return
        reply = error_reply("invalid_http", "This is not a valid HTTP/1.1 request, or its headers are too large.")
        headers = [*reply.raw_headers, (b"x-request-id", uuid.uuid4().hex.encode()), (b"connection", b"close")]
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%s: %s" % header for header in headers), b"", bytes(reply.body)]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
