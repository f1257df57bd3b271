"""Request bodies: how large one may be, how many bytes of all may be under way, and reading them.

Bytes are under way from before they are read until their requests are answered.
"""

import contextlib
from collections.abc import Iterator

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_core.errors import RequestError
from mis_server.edge.memory import allowed_memory
from mis_server.errors import error_reply

_SHARE_OF_MEMORY = 10  # the default is this part of it


class BodyLimitMiddleware:
    """Refuses bodies that are too large, by their announced length or as soon as they exceed the limit."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._message = f"The body is larger than {max_bytes} bytes; send fewer items."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, counting the bytes of its body."""
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        is_announced_too_large = announced.isdecimal() and int(announced) > self._max_bytes
        if announced.isdecimal() and not is_announced_too_large:  # the parser takes no more than was announced
            await self._app(scope, receive, send)
            return
        if is_announced_too_large and headers.get("expect", "").lower() == "100-continue":
            # The client waits for permission to send the body, so the refusal must not wait for the body.
            reply = error_reply("request_too_large", self._message, headers={"connection": "close"})
            await reply(scope, receive, send)
            return
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if is_announced_too_large or received > self._max_bytes:
                    await self._discard(receive, message)
                    raise RequestError("request_too_large", self._message)
            return message

        await self._app(scope, limited_receive, send)

    async def _discard(self, receive: Receive, message: Message) -> None:
        # Many clients read the reply only after they have sent the whole body, and a closed connection would hide the
        # reply from them. So up to as much again as the limit is read and discarded first.
        discarded = 0
        while message.get("more_body", False) and discarded < self._max_bytes:
            message = await receive()
            discarded += len(message.get("body", b""))


class BodyRoom:
    """What one body holds, inside `with BodyBytes.room()`."""

    def __init__(self, bodies: "BodyBytes") -> None:
        self._bodies = bodies
        self._held = 0
        self._received = 0

    def receive(self, count: int) -> None:
        """Receive so many bytes; hold more if they were not announced.

        Raises:
            RequestError: `queue_full`.
        """
        self._received += count
        self.hold(self._received)

    def hold(self, size: int) -> None:
        """Hold at least so many bytes.

        Raises:
            RequestError: `queue_full`.
        """
        if size > self._held:
            self._bodies.check(size, self._held)
            self._bodies.used += size - self._held
            self._held = size

    def leave(self) -> None:
        """Hold nothing any more."""
        self._bodies.used -= self._held
        self._held = 0


class BodyBytes:
    """Shares the memory for bodies out: each may hold at most half of what the others leave.

    However many large bodies arrive, as slowly as they like, there is room for smaller ones; each further body only has
    to be smaller. This is the dynamic threshold by which switches share buffers (Choudhury, Hahne, IEEE/ACM
    Transactions on Networking 6(2), 1998).

    Attributes:
        most: What is shared; at least twice the largest body, so that one that is alone always fits.
        used: What is held now.
    """

    def __init__(self, most: int | None, largest: int) -> None:
        """Share out a number of bytes; None: a tenth of the memory that this process may use, or twice the largest."""
        self.most = max(2 * largest, allowed_memory() // _SHARE_OF_MEMORY) if most is None else most
        self.used = 0

    @contextlib.contextmanager
    def room(self, announced: int | None) -> Iterator[BodyRoom]:
        """Surround all that is done with a body.

        Args:
            announced: Its length, as its headers say; None where they don't.

        Raises:
            RequestError: on entering; `queue_full`, before any of the body is read.
        """
        room = BodyRoom(self)
        room.hold(announced or 0)
        try:
            yield room
        finally:
            room.leave()

    def check(self, size: int, held: int) -> None:
        """Refuse a body of this size, of which some is held.

        Raises:
            RequestError: `queue_full`.
        """
        free = self.most - (self.used - held)
        if 2 * size > free:
            raise RequestError(
                "queue_full",
                f"{self.used - held} bytes of other bodies are under way, so a body may have at most "
                f"{max(free, 0) // 2} now. Try again later, or send a smaller one.",
            )


def announced_bytes(headers: Headers, max_bytes: int) -> int | None:
    """Return the length that headers announce; None if they don't, or one that `BodyLimitMiddleware` refuses."""
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and int(text) <= max_bytes else None


async def read_json_body(request: Request, room: BodyRoom) -> bytes:
    """Return the body of a request that says that it is JSON.

    Args:
        request: The request.
        room: Counts what is received.

    Raises:
        RequestError: `unsupported_media_type`; `queue_full`, if there is no room for a body whose length was not
            announced; or `request_too_large`, from `BodyLimitMiddleware`.
        ClientDisconnect: the client is gone.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError("unsupported_media_type", "The content type must be application/json.")
    return await read_body(request, room)


async def read_body(request: Request, room: BodyRoom) -> bytes:
    """Return the body of a request; raises as `read_json_body`."""
    # One growing block, which is mapped for itself: thousands of parts would leave holes in the heap when they go.
    body = bytearray()
    async for part in request.stream():
        room.receive(len(part))
        body += part
    return bytes(body)
