"""Parity of the TPU kernel over a pairwise cover of everything that a step's shape can be."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from allpairspy import AllPairs

from mis_testing.grids import part
from tpu_cases import SMALL, Case, check

LENGTHS = {
    "ones": (1,),
    "twos": (2,),
    "twenties": (20,),
    "below a block": (127,),
    "a block": (128,),
    "beyond a block": (129,),
    "ragged": (1, 38, 25, 12, 49, 36, 23, 10),
}


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
    page_size: int

    def lens(self) -> list[int]:
        """New tokens of each item, as many as the emulated step holds."""
        cycle, room, lens = LENGTHS[self.length], 384, []
        for item in range(self.items):
            room -= cycle[item % len(cycle)]
            if room < 0 and lens:
                break
            lens.append(cycle[item % len(cycle)])
        return lens


GRID = {
    "context": [0, 1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 2000],
    "items": [1, 2, 33, 500],
    "length": list(LENGTHS),
    "group": [1, 2, 3, 4, 6, 7, 8],
    "kv_heads": [1, 2, 4, 8],
    "head_dim": [64, 96, 128, 256],
    "dtype": ["float32", "bfloat16"],
    "others": ["alone", "another context", "a query in the same step", "scattered pages"],
    "page_size": [64, 128],
}
POINTS = [Point(*values) for values in AllPairs(list(GRID.values()))]


def _few(axes: list[list]) -> list[Sequence]:
    """Return a pairwise cover's fewest points that hold every value."""
    return [point.values[0] for point in part([*AllPairs(axes)], one_in=100) if not point.marks]


COMPILED = ("group", "kv_heads", "head_dim", "dtype", "page_size")  # a compiled kernel has one value of each
SHAPES = [  # the smallest heads first; every value of every axis, but groups of 2, as other tests have, and of 6
    (1, 1, 64, "float32", 64),
    (3, 8, 64, "bfloat16", 128),
    (7, 2, 96, "float32", 64),
    (8, 1, 256, "bfloat16", 128),
    (4, 4, 128, "float32", 128),
]
STEPS = sorted(
    _few([values for name, values in GRID.items() if name not in COMPILED]), reverse=True
)  # the longest context first: on the smallest heads
ROOM = {"tokens": 640, "contexts": 2, "tile_capacity": 80}  # as much as any of these steps needs


def case_of(point: Point) -> Case:
    lens = point.lens()
    segments = [(0, point.context, length, False) for length in lens]
    if point.others == "another context":
        segments[1::2] = [(1, 70, length, False) for length in lens[1::2]]
    if point.others == "a query in the same step":
        segments.insert(0, (1, point.page_size, 100, True))
    used = sum(length for *_, length, _ in segments) + point.page_size
    return Case(
        "",
        tuple(segments),
        tokens=-(-used // 128) * 128,
        kv_heads=point.kv_heads,
        group=point.group,
        head_dim=point.head_dim,
        page_size=point.page_size,
        dtype=point.dtype,
        blocks=SMALL,
        shuffle=point.others == "scattered pages",
    )


def test_the_cover_reaches_every_value() -> None:
    for axis, (name, values) in enumerate(GRID.items()):
        assert {point[axis] for point in POINTS} == set(values), name


@pytest.mark.tpu
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id="-".join(map(str, shape)), marks=pytest.mark.full if number in (0, 4) else ())
        for number, shape in enumerate(SHAPES)
    ],
)
def test_steps_of_one_shape_agree_with_the_reference(number: int, interpret: bool) -> None:
    """A few steps for each compiled kernel, in all every value of every axis: emulated kernels take long to compile."""
    shape = dict(zip(COMPILED, SHAPES[number], strict=True))
    for context, items, length, others in STEPS[number :: len(SHAPES)]:
        point = Point(context=context, items=items, length=length, others=others, **shape)
        pages = 640 // point.page_size  # a longer context is compiled by itself
        check(dataclasses.replace(case_of(point), **ROOM, pages_per_context=pages), interpret)


@pytest.mark.full
@pytest.mark.tpu
@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_agrees_with_the_reference(point: Point, interpret: bool) -> None:
    check(case_of(point), interpret)
