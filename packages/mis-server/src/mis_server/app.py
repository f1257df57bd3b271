"""The ASGI application: routes, errors and middleware around one service."""

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

import mis_server
from mis_server.edge.browsers import EXPOSED_HEADERS, Browsers, Cors, is_loopback
from mis_server.edge.middleware import ApiKey, BodyLimit, Heads, RequestIds
from mis_server.errors import install_error_handlers, reply_to
from mis_server.routes import admin, models, operations, score, tokens
from mis_server.schemas.errors import ErrorReply
from mis_server.service import ScoringClient, Service, Tokenizers
from mis_server.settings import ServerConfig


def create_app(client: ScoringClient, settings: ServerConfig, tokenizers: Tokenizers) -> FastAPI:
    """Build the application.

    Args:
        client: Answers requests; whoever calls this starts and closes it.
        settings: Names, key and limits.
        tokenizers: With the model's tokenizer; whoever calls this closes them.
    """
    app = _App(Service(client, settings, tokenizers))
    install_error_handlers(app)
    for module in (score, models, tokens, operations, admin):
        app.include_router(module.router)
    return app


class _App(FastAPI):
    """FastAPI inside our own layers, so that a score request meets only these: FastAPI's took an eighth of its time."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            title="MIS",
            summary="Scores many items against one query with a language model.",
            version=mis_server.__version__,
            docs_url=None,  # those pages load scripts from elsewhere; /openapi.json stays, behind the key
            redoc_url=None,
            redirect_slashes=False,
            responses={"default": {"model": ErrorReply, "description": "An error."}},
        )
        self.state.service = service
        settings = service.settings
        layers = [  # outermost first
            Middleware(Heads),
            Middleware(RequestIds, service.metrics, service.afterwards, log=not settings.disable_access_log),
            *_cors(settings),
            *_browsers(settings),
            Middleware(ApiKey, key=settings.api_key, admin_key=settings.admin_api_key),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
            *(Middleware(_Shortcut, route=route) for route in score.router.routes if isinstance(route, APIRoute)),
        ]
        self._layers: ASGIApp = super().__call__
        for layer, arguments, options in reversed(layers):
            self._layers = layer(self._layers, *arguments, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["app"] = self
        await self._layers(scope, receive, send)


class _Shortcut:
    """Hands the requests of one route to its function as they are, past the layers of FastAPI and its parameters."""

    def __init__(self, app: ASGIApp, route: APIRoute) -> None:
        self._app = app
        self._route = route
        self._methods = route.methods or set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of the route; pass others on."""
        if scope["type"] != "http" or scope["path"] != self._route.path or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        scope["route"] = self._route
        request = Request(scope, receive, send)
        try:
            response = await self._route.endpoint(request)
        except Exception as error:
            response = reply_to(request, error)
        await response(scope, receive, send)


def _browsers(settings: ServerConfig) -> list[Middleware]:
    """Guard a server without a key, which trusts whoever reaches it, against pages that make a browser reach it."""
    if settings.api_key is not None:
        return []
    hosts = None
    if is_loopback(settings.host):
        hosts = frozenset(map(str.strip, (settings.allowed_hosts or "localhost").split(",")))
    return [Middleware(Browsers, hosts=hosts, origins=frozenset(settings.origins))]


def _cors(settings: ServerConfig) -> list[Middleware]:
    if not settings.origins:
        return []
    return [
        Middleware(
            Cors,
            allow_origins=settings.origins,
            expose_headers=EXPOSED_HEADERS,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    ]
