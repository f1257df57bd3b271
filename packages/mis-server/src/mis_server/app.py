"""The ASGI application: middleware, routes and error handlers around one service."""

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Route

import mis_server
from mis_server.edge.body import BodyLimitMiddleware
from mis_server.edge.expanding import ExpandingMiddleware
from mis_server.edge.middleware import (
    EXPOSED_HEADERS,
    OPEN_PATHS,
    ApiKeyMiddleware,
    CorsMiddleware,
    HeadMiddleware,
    OriginGuardMiddleware,
    RequestIdMiddleware,
    is_loopback,
)
from mis_server.errors import install_error_handlers
from mis_server.model import Model
from mis_server.playground import read_files
from mis_server.routes import (
    admin,
    chat,
    classify,
    completions,
    decisions,
    models,
    operations,
    rerank,
    score,
    system_one,
    system_one_batch,
    token_classify,
    tokens,
)
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
    page = router_of(read_files() if has_playground(settings) else {})
    open_paths = OPEN_PATHS | {route.path for route in page.routes if isinstance(route, Route)}
    app = FastAPI(
        title="MIS",
        summary="Scores many items against one query with a language model.",
        version=mis_server.__version__,
        docs_url=None,  # these pages load scripts from other sites; /openapi.json stays, behind the key
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorReply, "description": "An error."}},
        middleware=[  # outermost first
            Middleware(HeadMiddleware),
            Middleware(RequestIdMiddleware, service.metrics, log=not settings.disable_access_log),
            *_cors(settings),
            *_origin_guard(settings),
            Middleware(ApiKeyMiddleware, open_paths, key=settings.api_key, admin_key=settings.admin_api_key),
            Middleware(ExpandingMiddleware, max_bytes=settings.max_body_bytes),
            Middleware(BodyLimitMiddleware, max_bytes=settings.max_body_bytes),
        ],
    )
    app.state.service = service
    install_error_handlers(app)
    for module in (
        score,
        rerank,
        decisions,
        system_one,
        system_one_batch,
        classify,
        token_classify,
        chat,
        completions,
        models,
        tokens,
        operations,
        admin,
    ):
        app.include_router(module.router)
    app.include_router(page)
    return app


def has_playground(settings: ServerConfig) -> bool:
    """Whether `/playground` is served."""
    return settings.playground or is_loopback(settings.host)


def _origin_guard(settings: ServerConfig) -> list[Middleware]:
    """Guard a server without a key, which trusts every client, against web pages that reach it through a browser."""
    if settings.api_key is not None:
        return []
    hosts = None
    if is_loopback(settings.host):
        hosts = frozenset(map(str.strip, (settings.allowed_hosts or "localhost").split(",")))
    return [Middleware(OriginGuardMiddleware, hosts=hosts, origins=frozenset(settings.origins))]


def _cors(settings: ServerConfig) -> list[Middleware]:
    if not settings.origins:
        return []
    return [
        Middleware(
            CorsMiddleware,
            allow_origins=settings.origins,
            expose_headers=EXPOSED_HEADERS,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    ]
