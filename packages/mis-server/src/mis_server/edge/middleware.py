"""What happens to every request before its route: id, log, key, body limit. Plain ASGI, outermost first."""

import asyncio
import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_core.errors import RequestError
from mis_server.edge.headers import header
from mis_server.errors import error_reply, internal_error
from mis_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
access = logging.getLogger("mis_server.access")

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that need no key; compared exactly, everything else is refused by default."""

ADMIN_PATHS = frozenset({"/flush_cache", "/start_profile", "/stop_profile"})
"""Paths that need the admin key where there is one."""

_LINE = "%(client)s %(method)s %(route)s %(status)d %(milliseconds).1f ms, %(request_id)s"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Heads:
    """Answers HEAD as GET; the server leaves out the body (RFC 9110, 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class RequestIds:
    """Names every request, puts the name on its reply as `x-request-id`, and answers what nobody foresaw with 500.

    Also logs and counts every request.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header(scope, b"x-request-id")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        id_header = (b"x-request-id", request_id.encode())
        scope.setdefault("state", {})["request_id"] = request_id
        began, status, is_complete = time.perf_counter(), 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            else:
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops, and the time for what runs is over
            if status:
                raise
            message = "The server stopped before this request was answered; try again."
            await error_reply("engine_unavailable", message)(scope, receive, send_with_id)
        except Exception:
            logger.exception("Request %s failed.", request_id)
            if status and not is_complete:
                raise
            if not status:
                await internal_error()(scope, receive, send_with_id)
        finally:
            self._note(scope, status, time.perf_counter() - began, request_id)

    def _note(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        method = scope["method"]
        route = getattr(scope.get("route"), "path", "none")  # never what the client wrote: it may be anything
        self._metrics.replied(method, route, status, seconds)
        level = logging.DEBUG if route in OPEN_PATHS else logging.INFO  # probes come every few seconds
        if self._log and access.isEnabledFor(level):
            fields = {
                "request_id": request_id,
                "client": (scope.get("client") or ("-",))[0],
                "method": method,
                "route": route,
                "status": status,
                "milliseconds": round(seconds * 1e3, 1),
            }
            access.log(level, _LINE, fields, extra=fields)


class ApiKey:
    """Refuses every request without the key, except on `OPEN_PATHS`; `ADMIN_PATHS` need the admin key if there is one.

    The admin key opens every route.
    """

    def __init__(self, app: ASGIApp, key: str | None, admin_key: str | None) -> None:
        self._app = app
        self._admin_key = None if admin_key is None else admin_key.encode()
        self._keys = [each.encode() for each in (key, admin_key) if each is not None]
        self._is_open = key is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or refuse it."""
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        reply = error_reply("invalid_api_key", "The API key is missing or wrong; send `Authorization: Bearer KEY`.")
        await reply(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        keys = self._keys
        if scope["path"] in ADMIN_PATHS and self._admin_key is not None:
            keys = [self._admin_key]
        elif self._is_open:
            return True
        scheme, _, given = header(scope, b"authorization").partition(" ")
        token = given.strip().encode("latin-1")
        matches = [secrets.compare_digest(token, key) for key in keys]  # all of them: no early end to time
        return scheme.lower() == "bearer" and any(matches)


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
        announced = header(scope, b"content-length")
        is_announced_too_large = announced.isdecimal() and int(announced) > self._max_bytes
        if announced.isdecimal() and not is_announced_too_large:  # the parser takes no more than was announced
            await self._app(scope, receive, send)
            return
        if is_announced_too_large and header(scope, b"expect").lower() == "100-continue":
            # The client asks before it sends. What it sends next is no body, or one that nobody wants.
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
        return RequestError("request_too_large", self._message)

    @property
    def _message(self) -> str:
        return f"The body is larger than {self._max_bytes} bytes; send fewer items."
