"""How large values of JSON are, about."""

import sys
from collections.abc import Iterator
from typing import Any

_BYTES_PER_TOKEN = 4  # of common text; batches only have to be about as large as asked for


def tokens_of(text: Any) -> int:
    """Return about how many tokens a text has; of a list of ids, how many there are."""
    if isinstance(text, str):
        return len(text) // _BYTES_PER_TOKEN + 1
    return len(text) if isinstance(text, list) else 1


def json_tokens_of(value: Any) -> int:
    """Return about how many tokens a value of JSON has."""
    return sum(tokens_of(each) if isinstance(each, str) else 1 for each in _values(value))


def bytes_of(value: Any) -> int:
    """Return the memory of a value with all that is in it."""
    return sum(map(sys.getsizeof, _values(value)))


def _values(value: Any) -> Iterator[Any]:
    """Yield a value and all that is in it."""
    left = [value]
    while left:
        each = left.pop()
        yield each
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += [*each.keys(), *each.values()]
