"""Ids, access log and counts of requests, and the reply to unexpected errors."""

import asyncio
import logging
import re
import secrets
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_server.edge.keys import OPEN_PATHS
from mis_server.errors import error_reply, forget_frames, internal_error
from mis_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
access = logging.getLogger("mis_server.access")

_LINE = "%(client)s %(method)s %(route)s %(status)d %(milliseconds).1f ms, %(request_id)s"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
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
