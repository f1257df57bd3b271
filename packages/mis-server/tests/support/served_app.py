"""The application of a model whose parts may be pretended."""

from typing import Any

from fastapi import FastAPI

from mis_server.app import create_app
from mis_server.model import Model
from mis_server.settings import ServerConfig


def served_app(client: Any, settings: ServerConfig, tokenizers: Any) -> FastAPI:
    """Return the application as `serve` makes it, with these in place of an engine process and tokenizer processes."""
    model = Model(settings.engine, client, tokenizers, names=settings.model_names, limits=settings.limits)
    return create_app(model, settings)
