"""Grids of test cases, of which a part is run for every change and the rest in full runs only."""

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def part(points: Sequence[Sequence[Any]], one_in: int = 3) -> list[ParameterSet]:
    """Return every point as a parameter; those outside a part carry the mark `full`.

    The part holds every value of every axis, and is larger if that takes more points: first those that bring most
    new values, then the earliest ones. Equal grids have equal parts.

    Args:
        points: Points of one grid, each with one value for every axis.
        one_in: How many points one of the part stands for.
    """
    values = [set(enumerate(point)) for point in points]
    missing = set().union(*values)
    kept: set[int] = set()
    while missing:
        best = max(range(len(points)), key=lambda index: len(values[index] & missing))
        kept.add(best)
        missing -= values[best]
    for index in range(len(points)):
        if one_in * len(kept) < len(points):
            kept.add(index)
    return [
        pytest.param(point, marks=() if index in kept else pytest.mark.full, id="-".join(map(str, point)))
        for index, point in enumerate(points)
    ]
