"""The engine: one model on this process's devices."""

from mis_core.engine.engine import Engine

__all__ = ["Engine"]
