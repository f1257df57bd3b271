"""Which rows of two runs are compared."""

from types import SimpleNamespace
from typing import Any

from mis_bench.results.likeness import RowKey, partners


def row(target: str, name: str = "") -> tuple[Any, RowKey]:
    return SimpleNamespace(target=target, name=name), RowKey({"name": "m"}, {"dtype": "float32"})


def named(pairs: list[tuple[Any, Any]]) -> list[tuple[str, str]]:
    return [(now.target, then.target) for now, then in pairs]


def test_rows_are_compared_by_target_whatever_the_order() -> None:
    for now in (["vllm", "engine"], ["engine", "vllm"]):
        found = partners([row(each) for each in now], [row("engine")])
        assert named(found) == [("engine", "engine")]


def test_a_renamed_target_is_compared_if_it_is_the_only_one() -> None:
    assert named(partners([row("new")], [row("old")])) == [("new", "old")]
    assert named(partners([row("a"), row("new")], [row("old"), row("a")])) == [("a", "a"), ("new", "old")]
    assert partners([row("new"), row("newer")], [row("old")]) == []


def test_rows_that_are_there_twice_are_in_no_pair() -> None:
    assert partners([row("a", "1"), row("a", "2")], [row("a")]) == []
