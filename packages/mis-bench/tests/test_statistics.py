"""Intervals, against SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mis_bench.results.statistics import FEWEST, Latency, estimate, ratio

ROUNDS = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=40)


@settings(max_examples=25, deadline=None)
@given(ROUNDS)
def test_an_interval_is_scipys_bootstrap_or_a_range_of_rounds(rounds: list[float]) -> None:
    found = estimate(rounds)
    assert found is not None
    assert found.value == np.median(rounds)
    assert found.rounds == rounds
    if len(rounds) < FEWEST:
        assert (found.low, found.high, found.confidence) == (min(rounds), max(rounds), None)
        return
    wanted = stats.bootstrap(
        (rounds,), np.median, n_resamples=2000, method="percentile", vectorized=False, rng=np.random.default_rng(0)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert found.confidence == 0.95


def test_fewer_than_six_rounds_are_shown_more_have_an_interval() -> None:
    few, enough = estimate([3.0, 1.0, 2.0]), estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert few is not None
    assert enough is not None
    assert few.spread == "3, 1, 2"
    assert " to " in enough.spread
    assert estimate([]) is None


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    found = [estimate(rng.lognormal(size=12).tolist()) for _ in range(200)]
    covered = np.mean([each.low <= 1 <= each.high for each in found if each is not None])
    assert 0.88 < covered <= 1  # the median of a lognormal is 1


def test_a_ratio_is_taken_round_by_round_of_the_same_rounds() -> None:
    slow, drifting = estimate([1.0, 2.0, 4.0]), estimate([2.0, 4.0, 8.0])
    found = ratio(drifting, slow)
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    assert ratio(drifting, estimate([1.0, 2.0])) is None
    assert ratio(drifting, None) is None


@given(ROUNDS)
def test_latencies_are_numpys_percentiles(milliseconds: list[float]) -> None:
    found = Latency.of(milliseconds)
    assert found is not None
    wanted = [*np.percentile(milliseconds, [50, 95, 99]), np.mean(milliseconds), np.std(milliseconds)]
    got = [found.p50_ms, found.p95_ms, found.p99_ms, found.mean_ms, found.std_ms]
    assert got == pytest.approx(wanted)
    assert Latency.of([]) is None
