"""Parity of the backends for CPUs over a pairwise cover of everything that a step's shape can be."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from allpairspy import AllPairs

from kernel_cases import ON_CPU, UNOPTIMISED, Case, Segment, backend_of, in_float32
from mis_kernels import segment_attention
from mis_testing.grids import part
from mis_testing.tolerances import ATTENTION

# Unoptimised, as each point is compiled and runs once; `test_backends.py` has optimised steps.
attend = jax.jit(segment_attention, static_argnames=("scale", "backend"), compiler_options=UNOPTIMISED)


class Point(NamedTuple):
    """One point of the grid; lengths in tokens."""

    context: int
    items: int
    length: str
    group: int
    kv_heads: int
    head_dim: int
    dtype: str
    others: str

    def length_of(self, item: int) -> int:
        """Tokens of the n-th item, in the words of the grid."""
        words = {"one": 1, "two": 2, "twenty": 20, "below a block": 127, "a block": 128, "beyond a block": 129}
        return words.get(self.length) or 1 + (item * 37) % 50


GRID = {
    "context": [0, 1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 2000, 8000, 40_000],
    "items": [1, 2, 33, 500, 2000],
    "length": ["one", "two", "twenty", "below a block", "a block", "beyond a block", "ragged"],
    "group": [1, 2, 4, 6, 7, 8],
    "kv_heads": [1, 2, 4, 8],
    "head_dim": [64, 96, 128, 256],
    "dtype": ["float32", "bfloat16"],
    "others": ["alone", "padding between", "another context", "a query in the same step"],
}
MOST_PRODUCTS = 1.5e9  # tokens x keys x heads x head_dim: about a second of the dense reference on two cores


@functools.cache
def tokens_of(items: int, length: str) -> int:
    """New tokens of so many items, in the words of the grid."""
    return sum(Point(0, items, length, 1, 1, 64, "float32", "alone").length_of(item) for item in range(items))


def affordable(values: list) -> bool:
    """Whether a point, or the beginning of one, is small enough for the dense float32 reference."""
    if len(values) < 6:
        return True
    point = Point(*values, *["float32", "alone"][len(values) - 6 :])
    tokens = tokens_of(point.items, point.length) + 256
    keys = 2 * point.context + tokens
    return tokens * keys * point.group * point.kv_heads * point.head_dim < MOST_PRODUCTS and tokens < 5000


POINTS = [Point(*values) for values in AllPairs(list(GRID.values()), filter_func=affordable)]


def case_of(point: Point) -> Case:
    segments = [Segment(point.length_of(item)) for item in range(point.items)]
    contexts: tuple[int, ...] = (point.context,)
    if point.others == "another context":
        contexts = (point.context, 70)
        segments[1::2] = [Segment(segment.length, context=1) for segment in segments[1::2]]
    if point.others == "a query in the same step":
        contexts = (point.context, 64)
        segments.insert(0, Segment(100, context=1, paged=True))
    return Case(
        segments,
        contexts,
        kv_heads=point.kv_heads,
        group=point.group,
        head_dim=point.head_dim,
        gap=3 if point.others == "padding between" else 0,
    )


def test_the_cover_reaches_every_value() -> None:
    for axis, (name, values) in enumerate(GRID.items()):
        assert {point[axis] for point in POINTS} == set(values), name


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("point", part(POINTS, one_in=12))
def test_equals_the_reference(point: Point, backend: str) -> None:
    if backend == "native":
        point = point._replace(dtype="bfloat16")
    case = case_of(point)
    arrays = case.arrays(jnp.dtype(point.dtype), backend_of(backend, case, point.dtype))
    np.testing.assert_allclose(
        np.asarray(attend(**arrays), np.float32),
        in_float32(arrays),
        atol=ATTENTION[point.dtype],
        rtol=ATTENTION[point.dtype],
    )
