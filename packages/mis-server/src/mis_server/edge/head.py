"""HEAD requests, which FastAPI's routes do not answer."""

from starlette.types import ASGIApp, Receive, Scope, Send


class Heads:
    """Answers HEAD as GET; the server leaves out the body (RFC 9110, 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)
