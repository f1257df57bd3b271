"""Safetensors files, opened with errors that name them."""

import contextlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mis_core.errors import ModelError, shown


def open_safetensors(stack: contextlib.ExitStack, path: Path) -> tuple[Any, list[str]]:
    """Open a safetensors file until a stack closes; return it and the names of its tensors.

    Raises:
        ModelError: it is truncated, or no safetensors file.
    """
    try:
        handle = stack.enter_context(safe_open(path, framework="np"))
        return handle, list(handle.keys())
    except (SafetensorError, OSError, MemoryError) as error:
        reason = shown(str(error), 200)
        raise ModelError(f"{path}: truncated or not a safetensors file ({reason}).") from None
