"""Protection of servers without a key from requests that web pages of other sites make browsers send.

Such a page cannot read the replies, but its requests arrive, from inside the firewall or from this very machine. A page
whose own host name is made to resolve to this server (DNS rebinding) could even read the replies; only the name in
`Host` reveals it.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mis_server.errors import error_reply

EXPOSED_HEADERS = ("x-request-id", "retry-after", "server-timing")
"""Headers of a reply that pages of allowed origins may read."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Browsers:
    """Refuses requests with a foreign host name, and unsafe requests from pages of a foreign origin."""

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


class Cors(CORSMiddleware):
    """Starlette's CORS, with our error envelope for refusals."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return error_reply("foreign_origin", f"{bytes(response.body).decode()}; see --cors-allowed-origins.")


def _name(host: str) -> str:
    """Return the name or address in a `Host` header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Whether a name or an address is a loopback one."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
