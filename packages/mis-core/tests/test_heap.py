"""A start looks for no garbage, and what it made is exempt from later looks."""

import gc
from collections.abc import Iterator

import pytest

from mis_core.process.heap import without_collection


class Thing:
    pass


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_a_start_makes_is_not_looked_at() -> None:
    with without_collection():
        assert not gc.isenabled()
        made = Thing()
    assert gc.isenabled()
    later = Thing()
    looked_at = {id(each) for each in gc.get_objects()}
    assert id(later) in looked_at
    assert id(made) not in looked_at


def test_who_looks_for_no_garbage_at_all_still_does_not() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
