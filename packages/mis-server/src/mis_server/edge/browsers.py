"""What a page of another site makes a browser send to a server that asks for no key.

Such a page cannot read the replies, but its requests arrive: from the inside of a firewall, or of this machine. A page
whose own name is made to lead here (DNS rebinding) could even read them; only the name in `Host` gives it away.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mis_server.edge.headers import header
from mis_server.errors import error_reply

EXPOSED_HEADERS = ("x-request-id", "retry-after", "server-timing")
"""What allowed pages may read of a reply besides its body."""

_READING = ("GET", "HEAD", "OPTIONS")


class Browsers:
    """Refuses requests with a foreign host name, and requests of pages of foreign origin that change something."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None, origins: frozenset[str]) -> None:
        """Guard an application.

        Args:
            app: The application.
            hosts: Names that requests may call the server, besides `localhost` and loopback addresses; None: any.
            origins: Origins whose pages may ask; `*` is every origin.
        """
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else error_reply(*refusal))(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        host = header(scope, b"host")
        if self._hosts is not None:
            name = _name(host)
            if (
                name and name not in self._hosts and not is_loopback(name)
            ):  # HTTP/1.0 may leave it out; browsers never do
                return "foreign_host", "This server has no key and answers only to localhost; see --allowed-hosts."
        if scope["method"] in _READING or "*" in self._origins:
            return None
        origin = header(scope, b"origin")
        is_own = origin == f"{scope.get('scheme', 'http')}://{host}"
        is_foreign = bool(origin) or header(scope, b"sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign and not is_own and origin not in self._origins:
            return (
                "foreign_origin",
                "Pages of other sites may not ask a server without a key; see --cors-allowed-origins.",
            )
        return None


class Cors(CORSMiddleware):
    """Starlette's answers to browsers, with our envelope for what they refuse."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Say whether a page may ask what it is about to ask."""
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
    """Whether a name or address is this machine's own."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
