"""Bytes that instructions of a compiled program read and write, from the shapes in it: no clock is needed."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 16: 2}
"""Bytes of an element, by its type in `xla_data.proto`: booleans, integers, floats and bfloat16."""

_STACKS: Mapping[str, Sequence[int]] = {
    "mis_packed_linear": (1,), "mis_float32_packed_linear": (1,), "mis_int8_product": (1, 2),
}  # fmt: skip
"""Operands of native calls that hold every layer's weights, of which a call reads one layer's."""

_PAGES: Mapping[str, Sequence[int]] = {"mis_segment_attention": (3, 4), "mis_float32_segment_attention": (3, 4)}
"""Operands of native calls that hold all pages; which of them a call reads, a step's arrays decide."""


def bytes_of(shape: Any) -> int:
    """Return the bytes of an array, or of all arrays of a tuple, by its message `ShapeProto`."""
    return _WIDTHS.get(shape.element_type, 0) * prod(shape.dimensions) + sum(map(bytes_of, shape.tuple_shapes))


def bytes_read(call: str, operands: Sequence[Any]) -> int:
    """Return the bytes of what a call reads, each operand once: one layer of a stack, and no pages.

    Args:
        call: The function that is called; empty: none of the native library.
        operands: Messages `ShapeProto` of its operands.
    """
    stacks, pages = _STACKS.get(call, ()), _PAGES.get(call, ())
    found = 0
    for number, shape in enumerate(operands):
        if number not in pages:
            found += bytes_of(shape) // (shape.dimensions[0] if number in stacks else 1)
    return found
