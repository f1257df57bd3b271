"""HTTP/1.1 as uvicorn speaks it, with an end to clients that send nothing, and our envelope for broken requests."""

import asyncio
import uuid
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mis_server.errors import error_reply

HEADER_TIMEOUT_S = 20.0
"""Within this time of connecting, and of the first byte of a further request, its headers must be complete."""


WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing of its reply for so long is cut off."""


class _Gathering:
    """A transport that writes once per turn of the event loop: a reply's head and body in one packet, one call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Write what is left, then close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()


class Protocol(H11Protocol):
    """Closes connections whose headers do not arrive in time; a slow client holds a socket, never a worker."""

    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of the reply, when last looked at

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(cast(Any, _Gathering(transport, self.loop)))
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_watching()
        self._stop_check()
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
        if self.conn.their_state is not h11.IDLE:
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
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # another reply is half sent
            self.transport.close()
            return
        reply = error_reply("invalid_http", "This is not a valid HTTP/1.1 request, or its headers are too large.")
        headers = [*reply.raw_headers, (b"x-request-id", uuid.uuid4().hex.encode()), (b"connection", b"close")]
        events = (
            h11.Response(status_code=reply.status_code, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(reply.body)),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()
