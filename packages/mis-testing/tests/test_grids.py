"""Grids: a part for every change, with every value in it."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mis_testing.grids import part

points = st.permutations(list(product("abc", range(4), [True, False])))


@given(points=points)
def test_what_is_not_left_to_full_runs_holds_every_value(points: list[tuple]) -> None:
    found = part(points)
    assert [parameter.values[0] for parameter in found] == points
    kept = [parameter.values[0] for parameter in found if not parameter.marks]
    assert len(kept) == 8
    for axis in range(3):
        assert {point[axis] for point in kept} == {point[axis] for point in points}


def test_what_is_left_to_full_runs_is_marked() -> None:
    found = part([(n // 8,) for n in range(9)])
    assert [[mark.name for mark in parameter.marks] for parameter in found] == [[]] * 2 + [["full"]] * 6 + [[]]
    assert found[8].id == "1"
