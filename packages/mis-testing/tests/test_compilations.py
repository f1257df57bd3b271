"""The compilation counter: hears what compiles, and only that."""

import threading

import pytest

from mis_testing.compilations import count_compilations

jax = pytest.importorskip("jax")


def test_a_new_shape_is_counted_and_named_and_a_known_one_is_not() -> None:
    def double(x: jax.Array) -> jax.Array:
        return x * 2

    jitted = jax.jit(double)
    three, four = jax.numpy.ones(3), jax.numpy.ones(4)
    jitted(three)
    with count_compilations() as compilations:
        jitted(three)
        assert compilations.count == 0
        jitted(four)
    assert compilations.count == 1
    assert "double" in compilations.names[0]


def test_other_threads_are_heard() -> None:
    with count_compilations() as compilations:
        thread = threading.Thread(target=lambda: jax.jit(lambda: 1).lower().compile())
        thread.start()
        thread.join()
    assert compilations.count == 1


def test_counting_ends_with_the_block() -> None:
    with count_compilations() as compilations:
        pass
    jax.jit(lambda: 2).lower().compile()
    assert compilations.count == 0


def test_a_counter_that_hears_nothing_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_testing.compilations._EVENT", "/renamed")
    with pytest.raises(RuntimeError, match="does not report /renamed"), count_compilations():
        pass
