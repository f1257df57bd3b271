"""The parts of a `tokenizer.json`: normalizers, pre-tokenizers, post-processors and decoders."""

from collections.abc import Iterator
from typing import Any

_INNER = ("normalizers", "pretokenizers", "processors", "decoders")


def components(*found: object) -> Iterator[dict[str, Any]]:
    """Yield parts, sequences among them, each followed by those that it consists of; what is no part is left out."""
    waiting: list[Any] = [*reversed(found)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, dict):
            waiting += [part.get(name) for name in _INNER]
            yield part
