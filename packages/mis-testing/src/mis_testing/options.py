"""Options of engines that only have to answer."""

from types import MappingProxyType
from typing import Any

SMALL_ENGINE: MappingProxyType[str, Any] = MappingProxyType(
    {"dtype": "float32", "chunked_prefill_size": 256, "max_total_tokens": 8192, "skip_warmup": True}
)
"""`Engine.from_pretrained(path, **SMALL_ENGINE)`: soon ready.

The size of a step and of the cache are part of what is compiled, so engines with these options, in whatever process,
find what others have compiled for a model of the same shape; so do the fixtures `engine` and `server`.
"""
