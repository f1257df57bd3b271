"""The ASGI application: routes, errors and middleware around one service."""

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import mis_server
from mis_core.tokenization import Tokenizer
from mis_server.errors import install_error_handlers
from mis_server.middleware import ApiKey, BodyLimit, RequestIds
from mis_server.routes import admin, models, operations, score, tokens
from mis_server.schemas.errors import ErrorReply
from mis_server.service import ScoringClient, Service
from mis_server.settings import ServerConfig


def create_app(client: ScoringClient, settings: ServerConfig, tokenizer: Tokenizer) -> FastAPI:
    """Build the application.

    Args:
        client: Answers requests; whoever calls this starts and closes it.
        settings: Names, key and limits.
        tokenizer: The model's.
    """
    service = Service(client, settings, tokenizer)
    app = FastAPI(
        title="MIS",
        summary="Scores many items against one query with a language model.",
        version=mis_server.__version__,
        docs_url=None,  # those pages load scripts from elsewhere; /openapi.json stays, behind the key
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorReply, "description": "An error."}},
        middleware=[
            Middleware(RequestIds, metrics=service.metrics, log=not settings.disable_access_log),
            *_cors(settings),
            Middleware(ApiKey, key=settings.api_key, admin_key=settings.admin_api_key),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
        ],
    )
    app.state.service = service
    install_error_handlers(app)
    for module in (score, models, tokens, operations, admin):
        app.include_router(module.router)
    return app


def _cors(settings: ServerConfig) -> list[Middleware]:
    if settings.cors_allowed_origins is None:
        return []
    origins = [origin.strip() for origin in settings.cors_allowed_origins.split(",")]
    return [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])]
