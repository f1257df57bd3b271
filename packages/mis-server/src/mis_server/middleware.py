"""What happens to every request before its route: an id, the key, the body limit. Plain ASGI, outermost first."""

import logging
import re
import secrets
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_core.errors import RequestError
from mis_server.errors import error_reply, internal_error

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that need no key; compared exactly, everything else is refused by default."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """Names every request, puts the name on its reply as `x-request-id`, and answers what nobody foresaw with 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("Request %s failed.", request_id)
            if has_started:
                raise
            await internal_error()(scope, receive, send_with_id)


class ApiKey:
    """Refuses every request without the key, except on `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or refuse it."""
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        reply = error_reply("invalid_api_key", "The API key is missing or wrong; send `Authorization: Bearer KEY`.")
        await reply(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if self._key is None or scope["path"] in OPEN_PATHS:
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(given.strip().encode("latin-1"), self._key)


class BodyLimit:
    """Refuses larger bodies, by their announced length or as soon as they exceed the limit."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, watching its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        is_announced_too_large = announced.isdecimal() and int(announced) > self._max_bytes
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if is_announced_too_large or received > self._max_bytes:
                    await self._discard(receive, message)
                    raise self._error()
            return message

        await self._app(scope, limited_receive, send)

    async def _discard(self, receive: Receive, message: Message) -> None:
        # Many clients read the reply only after they have sent all; a closed connection would hide it from
        # them. So as much again as the limit is read and thrown away before the reply.
        discarded = 0
        while message.get("more_body", False) and discarded < self._max_bytes:
            message = await receive()
            discarded += len(message.get("body", b""))

    def _error(self) -> RequestError:
        return RequestError("request_too_large", f"The body is larger than {self._max_bytes} bytes; send fewer items.")
