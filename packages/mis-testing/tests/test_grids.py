"""Grids: a third for every change, with every value in it."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mis_testing.grids import first_third

points = st.permutations(list(product("abc", range(4), [True, False])))


@given(points=points)
def test_what_is_not_left_to_full_runs_holds_every_value(points: list[tuple]) -> None:
    found = first_third(points)
    kept = [parameter.values[0] for parameter in found if not parameter.marks]
    assert [parameter.values[0] for parameter in found] == points
    assert kept == points[: len(kept)]
    for axis in range(3):
        assert {point[axis] for point in kept} == {point[axis] for point in points}
    assert len(kept) >= 8


def test_what_is_left_to_full_runs_is_marked() -> None:
    found = first_third([(n % 2,) for n in range(9)])
    assert [[mark.name for mark in parameter.marks] for parameter in found] == [[]] * 3 + [["full"]] * 6
    assert found[0].id == "0"
