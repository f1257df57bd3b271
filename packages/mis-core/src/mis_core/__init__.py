"""Multi-item scoring: one query, many items, the probabilities of a few label tokens each.

    from mis_core import Engine

    with Engine.from_pretrained("path/to/checkpoint") as engine:
        result = engine.score("query", [" item", " another"], label_token_ids=[9454, 2753])

`import mis_core` loads no JAX: `Engine` is imported at its first use, so that processes which only
talk to an engine stay light. `docs/architecture.md` lists the modules in the order of a request.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mis_core.errors import ConfigError, EngineUnavailable, MisError, ModelError, RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.usage import Usage

if TYPE_CHECKING:
    from mis_core.engine import Engine

__version__ = "0.3.0"

__all__ = [
    "ConfigError",
    "Engine",
    "EngineOutput",
    "EngineUnavailable",
    "MisError",
    "ModelError",
    "RequestError",
    "ScoreRequest",
    "ScoreResult",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("mis_core.engine").Engine


def __dir__() -> list[str]:
    return sorted(__all__)
