"""Exact equality of arrays, bit by bit: what isolation promises."""

from typing import Any

import numpy as np


def assert_bits_equal(actual: Any, expected: Any) -> None:
    """Fail unless two arrays have the same dtype, shape and bits.

    Stricter than `==`: 0.0 and -0.0 differ, NaNs of equal bits are equal. Takes NumPy and JAX arrays
    of any dtype, bfloat16 included.

    Raises:
        AssertionError: names the first differing index, both values, and how many differ.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"dtypes differ: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"shapes differ: {actual.shape}, expected {expected.shape}"
    differing = np.argwhere((_bytes(actual) != _bytes(expected)).any(axis=-1))
    if len(differing):
        first = tuple(int(number) for number in differing[0])
        a, b = actual[first], expected[first]
        raise AssertionError(
            f"{len(differing)} of {actual.size} values differ in their bits; first at index {first}: "
            f"{a!r} ({a.tobytes()[::-1].hex()}), expected {b!r} ({b.tobytes()[::-1].hex()})"
        )


def _bytes(values: np.ndarray) -> np.ndarray:
    """View as bytes, with one more axis."""
    contiguous = np.ascontiguousarray(values).reshape(values.shape)  # the former makes a scalar 1-d
    return contiguous[..., None].view(np.uint8)
