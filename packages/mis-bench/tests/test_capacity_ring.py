"""HAProxy's ring: who gets a key, the bound, and what moves when a server goes. Beside HAProxy: `cluster/`."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_bench.capacity.ring import Ring, avalanche, key_of

KEYS = [zlib.crc32(str(number).encode()) for number in range(3000)]


@given(
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    factor=st.integers(101, 400),
    keys=st.lists(st.integers(0, 2**32 - 1), max_size=60),
)
def test_no_server_gets_more_than_the_bound(weights: list[int], factor: int, keys: list[int]) -> None:
    ring, served = Ring(weights, factor), [0] * len(weights)
    for key in keys:
        chosen = ring.choose(key, served)
        assert chosen is not None
        served[chosen] += 1
        places = -(-sum(served) * factor // 100)
        assert served[chosen] <= max(np.ceil(places * weights[chosen] / sum(weights)), 1)


@given(st.lists(st.integers(1, 20), min_size=2, max_size=12), st.data())
def test_only_keys_of_a_server_that_goes_move_and_they_come_back(weights: list[int], data: st.DataObject) -> None:
    ring, gone = Ring(weights), data.draw(st.integers(0, len(weights) - 1))
    before = [ring.home(key) for key in KEYS[:200]]
    ring.set_up(gone, False)
    during = [ring.home(key) for key in KEYS[:200]]
    ring.set_up(gone, True)
    assert gone not in during
    assert all(new == old for old, new in zip(before, during, strict=True) if old != gone)
    assert [ring.home(key) for key in KEYS[:200]] == before


def test_shares_follow_weights_and_many_points_make_them_even() -> None:
    def shares(weights: list[int]) -> np.ndarray:
        ring = Ring(weights)
        return np.bincount([ring.home(key) for key in KEYS], minlength=len(weights)) / len(KEYS)

    assert shares([64, 128, 64]) == pytest.approx([0.25, 0.5, 0.25], abs=0.04)
    assert shares([64] * 10).std() < shares([1] * 10).std() / 2


def test_a_server_that_refused_is_avoided_while_there_is_another() -> None:
    ring = Ring([1, 1], 200)
    first = ring.choose(7, [0, 0])
    assert first is not None
    assert ring.choose(7, [0, 0], avoid=first) == 1 - first
    ring.set_up(1 - first, False)
    assert ring.choose(7, [0, 0], avoid=first) == first
    ring.set_up(first, False)
    assert ring.choose(7, [0, 0]) is ring.home(7) is None


def test_without_a_factor_load_does_not_matter() -> None:
    ring = Ring([1, 1, 1])
    assert [ring.choose(key, [1000, 0, 0]) for key in KEYS] == [ring.home(key) for key in KEYS]


def test_hashes_are_of_32_bits_and_differ() -> None:
    assert len({avalanche(number) for number in range(5000)}) == 5000
    assert len({key_of(f"{number:016x}") for number in range(5000)}) > 4990
    assert 0 <= min(map(avalanche, range(5000))) <= max(map(avalanche, range(5000))) < 2**32


@pytest.mark.parametrize(("weights", "factor"), [([0], 0), ([257], 0), ([1], 100), ([1], 7)])
def test_what_haproxy_refuses_is_refused(weights: list[int], factor: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Ring(weights, factor)
