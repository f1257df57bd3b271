"""Bytes that instructions of a compiled program read and write, from the shapes in it: no clock is needed."""

from math import prod
from typing import Any

_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 16: 2}
"""Bytes of an element, by its type in `xla_data.proto`: booleans, integers, floats and bfloat16."""


def bytes_of(shape: Any) -> int:
    """Return the bytes of an array, or of all arrays of a tuple, by its message `ShapeProto`."""
    return _WIDTHS.get(shape.element_type, 0) * prod(shape.dimensions) + sum(map(bytes_of, shape.tuple_shapes))
