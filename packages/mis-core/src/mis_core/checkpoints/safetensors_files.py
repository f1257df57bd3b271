"""Safetensors files, opened with errors that name them."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from mis_core.errors import ModelError, shown

_TYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
_SIZE_BYTES = 8  # of the header's length, which a file begins with


class SafetensorsFile:
    """An open safetensors file.

    `safetensors` checks the header. The elements are read rather than mapped: the pages of a mapping would stay in
    memory beside the weights that were made of them.
    """

    def __init__(self, stack: contextlib.ExitStack, path: Path) -> None:
        """Open a file until a stack closes; errors are those of `open_safetensors`."""
        self._path = path
        self._checked = stack.enter_context(safe_open(path, framework="np"))
        self._file = stack.enter_context(path.open("rb"))
        header_bytes = int.from_bytes(self._file.read(_SIZE_BYTES), "little")
        self._header = json.loads(self._file.read(header_bytes))
        self._begin = _SIZE_BYTES + header_bytes

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._checked.keys())

    def get_slice(self, name: str) -> Any:
        """Return a tensor as `safetensors` describes it: `get_shape`, `get_dtype`."""
        return self._checked.get_slice(name)

    def get_tensor(self, name: str) -> np.ndarray:
        """Return the elements of a tensor as they are stored.

        Raises:
            ModelError: the file has become shorter since it was opened.
        """
        entry = self._header[name]
        if entry["dtype"] not in _TYPES:
            return self._checked.get_tensor(name)
        elements = np.empty(math.prod(entry["shape"]), _TYPES[entry["dtype"]])
        self._file.seek(self._begin + entry["data_offsets"][0])
        if self._file.readinto(elements.view(np.uint8).data) != elements.nbytes:
            raise ModelError(f"{self._path}: truncated while tensor {shown(name, 200)} was read.")
        return elements.reshape(entry["shape"])


def open_safetensors(stack: contextlib.ExitStack, path: Path) -> tuple[SafetensorsFile, list[str]]:
    """Open a safetensors file until a stack closes; return it and the names of its tensors.

    Raises:
        ModelError: it is truncated, or no safetensors file.
    """
    try:
        file = SafetensorsFile(stack, path)
        return file, file.keys()
    except (SafetensorError, OSError, MemoryError) as error:
        reason = shown(str(error), 200)
        raise ModelError(f"{path}: truncated or not a safetensors file ({reason}).") from None
