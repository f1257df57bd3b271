"""Compressed bodies (RFC 9110, section 8.4): they are expanded while they are read, before anything counts them.

What a body may cost is bounded before it is paid: its bytes on the wire, its bytes expanded and how many times they are
more, the window that a decoder keeps, and how many frames or members it has.
"""

import asyncio
import sys
import zlib
from abc import ABC, abstractmethod

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_core.errors import RequestError
from mis_server.errors import error_reply

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_PART = 1 << 18  # bytes that are expanded at once; then others get their turn
_MAX_RATIO, _SMALL = 200, 1 << 20  # JSON of numbers and repeated names compresses 20 times, seldom 100
_WINDOW_LOG = 23  # 8 MiB, which RFC 8878 recommends that decoders support, and RFC 9659 allows at most over HTTP
_MAX_FRAMES = 4096  # each has a decoder of its own; blocked gzip has a member for every 64 KiB

_DAMAGED = "invalid_content_encoding"
_TOO_LARGE = "request_too_large"


class _Expander(ABC):
    """Expands a body of several frames, or members, one behind the other."""

    def __init__(self) -> None:
        self.pending = b""
        self.frames = 0
        self.is_inside = False

    @abstractmethod
    def read(self) -> bytes | None:
        """Return at most `_PART` bytes, maybe none; None where more of the body is needed.

        Raises:
            RequestError: the body is damaged, or needs too much memory.
        """

    def begin(self) -> None:
        """Begin a frame."""
        self.frames += 1
        if self.frames > _MAX_FRAMES:
            raise RequestError(_TOO_LARGE, f"The body has more than {_MAX_FRAMES} compressed frames; send it as one.")
        self.is_inside = True

    def end(self, rest: bytes) -> None:
        """End a frame."""
        self.pending, self.is_inside = rest, False


class _Gzip(_Expander):
    """RFC 1952."""

    def read(self) -> bytes | None:
        if not self.is_inside:
            if not self.pending:
                return None
            self.begin()
            self._inner = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self._is_full = False
        if not self.pending and not self._is_full:
            return None
        try:
            part = self._inner.decompress(self.pending, _PART)
        except zlib.error:
            raise RequestError(_DAMAGED, "The body is not gzip, or it is damaged.") from None
        self.pending, self._is_full = self._inner.unconsumed_tail, len(part) == _PART
        if self._inner.eof:
            self.end(self._inner.unused_data)
        return part


class _Zstd(_Expander):
    """RFC 8878."""

    def read(self) -> bytes | None:
        if not self.is_inside:
            if not self.pending:
                return None
            self.begin()
            self._inner = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
        if not self.pending and self._inner.needs_input:
            return None
        try:
            part = self._inner.decompress(self.pending, _PART)
        except zstd.ZstdError as error:
            if "too much memory" in str(error):
                message = (
                    f"The body needs a window of more than {1 << _WINDOW_LOG} bytes; compress it with a smaller one."
                )
                raise RequestError(_TOO_LARGE, message) from None
            raise RequestError(_DAMAGED, "The body is not zstd, or it is damaged.") from None
        self.pending = b""
        if self._inner.eof:
            self.end(self._inner.unused_data)
        return part


_EXPANDERS: dict[str, type[_Expander]] = {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}


class ExpandingMiddleware:
    """Gives the application the expanded body of a request; what it needs no more is not expanded."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        """Surround an application.

        Args:
            app: What is inside counts the expanded bytes.
            max_bytes: Most bytes of a compressed body.
        """
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = Headers(scope=scope)
        encoding = ", ".join(headers.getlist("content-encoding")).strip().lower()
        if encoding in ("", "identity"):
            await self._app(scope, receive, send)
            return
        make = _EXPANDERS.get(encoding)
        if make is None:
            message = "Content-Encoding must be gzip or zstd, not both, or left out."
            reply = error_reply("unsupported_media_type", message, headers={"accept-encoding": "gzip, zstd"})
            await reply(scope, receive, send)
            return
        announced = headers.get("content-length", "")
        dropped = {b"content-encoding"}
        if not (announced.isdecimal() and int(announced) > self._max_bytes):  # that is refused as any other one
            dropped.add(b"content-length")  # of the compressed body
            receive = _Reader(receive, make(), self._max_bytes)
        # In place: what is outside reads from the scope which route it was.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name not in dropped]
        await self._app(scope, receive, send)


class _Reader:
    """Receives a body, and gives it on expanded."""

    def __init__(self, receive: Receive, expander: _Expander, max_bytes: int) -> None:
        self._receive = receive
        self._expander = expander
        self._max_bytes = max_bytes
        self._received = self._expanded = 0
        self._more_body = True
        self._is_over = False

    async def __call__(self) -> Message:
        try:
            return await self._next()
        except RequestError:
            await self._discard()
            raise

    async def _next(self) -> Message:
        while not self._is_over:
            part = self._expander.read()
            if part is not None:
                self._count(part)
                await asyncio.sleep(0)
                if part:
                    return {"type": "http.request", "body": part, "more_body": True}
            elif self._more_body:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._feed(message)
            else:
                self._is_over = True
                if self._expander.is_inside:
                    raise RequestError(_DAMAGED, "The compressed body ends too early.")
                return {"type": "http.request", "body": b"", "more_body": False}
        return await self._receive()

    async def _discard(self) -> None:
        # Many clients read the reply only after they have sent the whole body, as `BodyLimitMiddleware` says.
        self._is_over = True
        discarded = 0
        while self._more_body and discarded < self._max_bytes:
            message = await self._receive()
            self._more_body = message.get("more_body", False)
            discarded += len(message.get("body", b""))

    def _feed(self, message: Message) -> None:
        body = message.get("body", b"")
        self._more_body = message.get("more_body", False)
        self._received += len(body)
        self._expander.pending += body
        if self._received > self._max_bytes:
            raise RequestError(_TOO_LARGE, f"The compressed body is larger than {self._max_bytes} bytes.")

    def _count(self, part: bytes) -> None:
        self._expanded += len(part)
        if self._expanded > max(_SMALL, _MAX_RATIO * self._received):
            message = f"The body expands more than {_MAX_RATIO} times; send it uncompressed, or in smaller parts."
            raise RequestError(_TOO_LARGE, message)
