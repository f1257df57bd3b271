"""Grids of test cases, of which a part is run for every change and the rest in full runs only."""

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def first_third(points: Sequence[Sequence[Any]]) -> list[ParameterSet]:
    """Return every point as a parameter; those after the first third carry the mark `full`.

    The first third is as much longer as it takes to hold every value of every axis. Points of a pairwise cover
    come with the most new pairs first, so these are the ones that say most.

    Args:
        points: Points of one grid, each with one value for every axis.
    """
    missing = {(axis, value) for point in points for axis, value in enumerate(point)}
    kept = 0
    while missing or kept * 3 < len(points):
        missing -= set(enumerate(points[kept]))
        kept += 1
    ids = ["-".join(map(str, point)) for point in points]
    marks = [()] * kept + [pytest.mark.full] * (len(points) - kept)
    return [pytest.param(point, marks=mark, id=name) for point, mark, name in zip(points, marks, ids, strict=True)]
