"""API keys: which paths need which."""

import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mis_server.errors import error_reply

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths for probes, which need no key."""

ADMIN_PATHS = frozenset({"/flush_cache", "/start_profile", "/stop_profile"})
"""Paths that need the admin key, if there is one."""


class ApiKey:
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
