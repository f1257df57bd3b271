"""The count of compilations: what it hears, and that it ends."""

import jax
import pytest

from mis_core.compilations import Compilations


def compile_something() -> None:
    jax.jit(lambda: 1).lower().compile()


def test_it_counts_from_its_beginning_to_its_stop() -> None:
    counted = Compilations()
    assert counted.count == 0
    compile_something()
    assert counted.count == 1
    counted.stop()
    counted.stop()
    compile_something()
    assert counted.count == 1


def test_a_counter_that_cannot_hear_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_core.compilations._COMPILED", "/an/event/of/another/version")
    counted = Compilations()
    compile_something()
    assert counted.count is None
    counted.stop()
