"""The ASGI application: middleware, routes and error handlers around one service."""

from fastapi import FastAPI
from starlette.middleware import Middleware

import mis_server
from mis_server.edge.body import BodyLimit
from mis_server.edge.browsers import EXPOSED_HEADERS, Browsers, Cors, is_loopback
from mis_server.edge.head import Heads
from mis_server.edge.keys import OPEN_PATHS, ApiKey
from mis_server.edge.request_ids import RequestIds
from mis_server.errors import install_error_handlers
from mis_server.model import Model
from mis_server.playground import read_files
from mis_server.routes import admin, chat, classify, completions, decisions, models, operations, rerank, score, tokens
from mis_server.routes.playground import router_of
from mis_server.schemas.errors import ErrorReply
from mis_server.service import HttpService
from mis_server.settings import ServerConfig


def create_app(model: Model, settings: ServerConfig) -> FastAPI:
    """Build the application. It takes HTTP only: neither WebSockets nor ASGI's lifespan.

    Args:
        model: What it serves, of `mis_server.model.running_model`, which starts and closes it.
        settings: Names, keys and limits.
    """
    service = HttpService(model, settings)
    page = read_files() if has_playground(settings) else {}
    app = FastAPI(
        title="MIS",
        summary="Scores many items against one query with a language model.",
        version=mis_server.__version__,
        docs_url=None,  # these pages load scripts from other sites; /openapi.json stays, behind the key
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorReply, "description": "An error."}},
        middleware=[  # outermost first
            Middleware(Heads),
            Middleware(RequestIds, service.metrics, log=not settings.disable_access_log),
            *_cors(settings),
            *_browsers(settings),
            Middleware(ApiKey, OPEN_PATHS | page.keys(), key=settings.api_key, admin_key=settings.admin_api_key),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
        ],
    )
    app.state.service = service
    install_error_handlers(app)
    for module in (score, rerank, decisions, classify, chat, completions, models, tokens, operations, admin):
        app.include_router(module.router)
    app.include_router(router_of(page))
    return app


def has_playground(settings: ServerConfig) -> bool:
    """Whether `/playground` is served."""
    return settings.playground or is_loopback(settings.host)


def _browsers(settings: ServerConfig) -> list[Middleware]:
    """Guard a server without a key, which trusts every client, against web pages that reach it through a browser."""
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
