"""What requests pass before their routes, as middleware of ASGI: ids and log, origins of browsers, keys."""

import asyncio
import ipaddress
import logging
import re
import secrets
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_server.errors import error_reply, forget_frames, internal_error
from mis_server.schemas import system_one
from mis_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
access = logging.getLogger("mis_server.access")

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths for probes, which need no key."""

ADMIN_PATHS = frozenset({"/flush_cache", "/start_profile", "/stop_profile"})
"""Paths that need the admin key, if there is one."""

EXPOSED_HEADERS = ("x-request-id", "retry-after", "server-timing")
"""Headers of a reply that pages of allowed origins may read."""

_ID_HEADERS = (b"x-request-id", b"x-typesafe-request-id")
_TYPESAFE_PATHS = frozenset({*system_one.PATHS, "/v1/models"})  # what TypeSafe's clients ask

_LINE = "%(client)s %(method)s %(route)s %(status)d %(milliseconds).1f ms, %(request_id)s"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class HeadMiddleware:
    """Answers HEAD, which FastAPI's routes do not, as GET; the server leaves out the body (RFC 9110, 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)


class RequestIdMiddleware:
    """Gives every request an id, which its reply has as `x-request-id`, then logs and counts it, however it ends.

    Unexpected errors are logged with the id and answered with 500.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        ids = [(name, request_id.encode()) for name in _ID_HEADERS[: 1 + (scope["path"] in _TYPESAFE_PATHS)]]
        scope.setdefault("state", {})["request_id"] = request_id
        began, status, is_complete = time.perf_counter(), 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *ids]
            else:
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server is stopping, and the time to finish is over
            if not status:
                message = "The server stopped before this request was answered; try again."
                await error_reply("engine_unavailable", message)(scope, receive, send_with_id)
            # A reply that has begun is cut: uvicorn closes the connection, and says so.
        except Exception as error:
            logger.exception("Request %s failed.", request_id)
            forget_frames(error)
            if status and not is_complete:
                raise
            if not status:
                await internal_error()(scope, receive, send_with_id)
        finally:
            self._record(scope, status, time.perf_counter() - began, request_id)

    def _record(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        method = scope["method"]
        route = getattr(scope.get("route"), "path", "none")  # never the path itself, which may be anything
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


class CorsMiddleware(CORSMiddleware):
    """Starlette's CORS, with our error envelope for refusals."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return error_reply("foreign_origin", f"{bytes(response.body).decode()}; see --cors-allowed-origins.")


class OriginGuardMiddleware:
    """Refuses requests with a foreign host name, and unsafe requests from pages of a foreign origin.

    It protects a server without a key from requests that web pages of other sites make browsers send. Such a page
    cannot read the replies, but its requests arrive, from inside the firewall or from this very machine. A page whose
    own host name is made to resolve to this server (DNS rebinding) could even read the replies; only the name in `Host`
    reveals it.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None, origins: frozenset[str]) -> None:
        """Guard an application.

        Args:
            app: The application.
            hosts: Allowed host names, besides `localhost` and loopback addresses; None: any.
            origins: Origins whose pages may send requests; `*` is every origin.
        """
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or refuse it."""
        refusal = self._refusal(scope)
        await (self._app if refusal is None else error_reply(*refusal))(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None:
            name = _name(host)
            # HTTP/1.0 may omit the name; browsers never do.
            if name and name not in self._hosts and not is_loopback(name):
                return "foreign_host", "This server has no API key and only answers to localhost; see --allowed-hosts."
        if scope["method"] in _SAFE_METHODS or "*" in self._origins:
            return None
        origin = headers.get("origin", "")
        is_own = origin == f"{scope.get('scheme', 'http')}://{host}"
        is_foreign = bool(origin) or headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign and not is_own and origin not in self._origins:
            message = "Pages of other sites may not use a server without an API key; see --cors-allowed-origins."
            return "foreign_origin", message
        return None


class ApiKeyMiddleware:
    """Refuses every request without the key, except on open paths; `ADMIN_PATHS` need the admin key if there is one.

    The admin key opens every route.
    """

    def __init__(self, app: ASGIApp, open_paths: frozenset[str], *, key: str | None, admin_key: str | None) -> None:
        """Guard an application.

        Args:
            app: The application.
            open_paths: Paths that need no key. They are compared exactly; everything else is refused by default.
            key: The API key; None: only `ADMIN_PATHS` are guarded, if there is an admin key.
            admin_key: The admin key, if there is one.
        """
        self._app = app
        self._open_paths = open_paths
        self._admin_key = None if admin_key is None else admin_key.encode()
        self._keys = [each.encode() for each in (key, admin_key) if each is not None]
        self._is_open = key is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or refuse it."""
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        reply = error_reply("invalid_api_key", "The API key is missing or wrong; send `Authorization: Bearer KEY`.")
        await reply(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if scope["path"] in self._open_paths:
            return True
        keys = self._keys
        if scope["path"] in ADMIN_PATHS and self._admin_key is not None:
            keys = [self._admin_key]
        elif self._is_open:
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1")
        # Always compared with all of them, so that timing tells nothing.
        matches = [secrets.compare_digest(token, key) for key in keys]
        return scheme.lower() == "bearer" and any(matches)


def is_loopback(name: str) -> bool:
    """Whether a name or an address is a loopback one."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """Return the name or address in a `Host` header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
