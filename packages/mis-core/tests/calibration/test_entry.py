"""What a calibration does to distributions over labels."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from mis_core.calibration import Curve, Entry, Figures, Identity, Scaling, Threshold

NONE = Figures(log_loss=0.5, brier=0.3, accuracy=0.8)
NEVER = Threshold(accuracy=0.95, observed=0, confidence=None, coverage=0, at_least=0)


def entry(labels: int = 2, **parts: Any) -> Entry:
    identity = Identity(task="score", labels=tuple((label,) for label in range(labels)), item_first=False)
    given = {"rows": 300, "groups": 300, "raw": NONE, "calibrated": NONE, "act": NEVER, "review": NEVER}
    return Entry(identity=identity, **given, **parts)


RISING = Curve(before=(0.1, 0.4, 0.9), after=(0.05, 0.5, 0.8))
THREE = (RISING, Curve(before=(0.0, 1.0), after=(0.2, 0.2)), Curve(before=(0.3, 0.5), after=(0.3, 0.9)))
PARTS: list[dict[str, Any]] = [
    {},
    {"scaling": Scaling(temperature=2.5)},
    {"scaling": Scaling(temperature=0.4, bias=(0.3, -0.2, 1.0))},
    {"curves": THREE},
    {"scaling": Scaling(temperature=1.7, bias=(0.3, -0.2, 1.0)), "curves": THREE},
]


def logprobs(seed: int, rows: int = 50, labels: int = 3) -> np.ndarray:
    return log_softmax(np.random.default_rng(seed).normal(0, 4, (rows, labels)), axis=1)


def test_temperature_and_bias_are_the_formula() -> None:
    given = logprobs(1)
    found = entry(3, scaling=Scaling(temperature=2.5, bias=(0.1, 0.2, -0.3))).apply(given)
    np.testing.assert_allclose(found, softmax(given / 2.5 + [0.1, 0.2, -0.3], axis=1), rtol=1e-15)


def test_of_two_labels_they_are_platts_sigmoid() -> None:
    given = logprobs(2, labels=2)
    found = entry(scaling=Scaling(temperature=0.5, bias=(-0.25, 0.25))).apply(given)[:, 1]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-(2.0 * (given[:, 1] - given[:, 0]) + 0.5))), rtol=1e-12)


def test_a_curve_is_linear_between_its_points_and_flat_beyond() -> None:
    positive = np.array([0.0001, 0.1, 0.25, 0.9, 0.99])
    found = entry(curves=(RISING,)).apply(np.log(np.stack([1 - positive, positive], axis=1)))
    np.testing.assert_allclose(found[:, 1], [0.05, 0.05, 0.275, 0.8, 0.8], atol=1e-3)
    assert (np.diff(found[:, 1].astype(np.float32)) > 0).all()  # what was different stays so, also as it is served


def test_curves_of_several_labels_are_divided_by_their_sum() -> None:
    given = logprobs(3)
    before = np.exp(given)
    each = np.stack([np.interp(before[:, i], THREE[i].before, THREE[i].after) for i in range(3)], axis=1)
    found = entry(3, curves=THREE).apply(given)
    np.testing.assert_allclose(found, each / each.sum(axis=1, keepdims=True), atol=1e-3)


@pytest.mark.parametrize("labels", [3, 20])
@given(seed=st.integers(0, 10**6), first=st.integers(0, 49), count=st.integers(1, 50))
def test_a_row_has_the_bits_that_it_has_alone(labels: int, seed: int, first: int, count: int) -> None:
    given = logprobs(seed, labels=labels)
    bias = tuple(np.linspace(-1, 1, labels).tolist())
    for parts in ({}, {"scaling": Scaling(temperature=1.7, bias=bias)}, {"curves": (RISING,) * labels}):
        calibration = entry(labels, **parts)
        whole = calibration.apply(given)
        assert (calibration.apply(given[first : first + count]) == whole[first : first + count]).all()
        np.testing.assert_allclose(whole.sum(axis=1), 1, rtol=1e-14)
        assert ((whole >= 0) & (whole <= 1)).all()


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=40, unique=True))
def test_of_two_labels_no_part_changes_the_order_of_rows(values: list[float]) -> None:
    difference = np.sort(values)
    given = log_softmax(np.stack([np.zeros_like(difference), difference], axis=1), axis=1)
    for parts in ({"scaling": Scaling(temperature=3.0, bias=(0.5, -0.5))}, {"curves": (RISING,)}):
        assert (np.diff(entry(**parts).apply(given)[:, 1]) >= 0).all()


def test_the_digest_is_of_what_it_belongs_to_and_does() -> None:
    digests = {entry(3, **parts).digest for parts in PARTS}
    digests |= {entry(2).digest, entry(3, begins=(1, 2)).digest}
    assert len(digests) == len(PARTS) + 2
    assert entry(3, notes=("a",)).digest == entry(3).digest


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"scaling": {"temperature": 0}}, ">= 0.001"),
        ({"scaling": {"temperature": 1, "bias": [1]}}, "bias for each label"),
        ({"scaling": {"temperature": 1, "bias": [1, 1e9]}}, "<= 1000"),
        ({"curves": [{"before": [0, 1], "after": [0, 1]}] * 2}, "one for two labels"),
        ({"curves": [{"before": [0.5, 0.5], "after": [0, 1]}]}, "increase strictly"),
        ({"curves": [{"before": [0, 1], "after": [1, 0]}]}, "never decrease"),
        ({"curves": [{"before": [0, 1], "after": [0, 0.5, 1]}]}, "same number of points"),
        ({"curves": [{"before": [0, 1], "after": [0, 1.5]}]}, "<= 1"),
        ({"curves": [{"before": [0.5], "after": [0.5]}]}, "length >= 2"),
        ({"identity": {"task": "score", "labels": [[1]]}}, "from 2 to 1024 labels"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_numbers_that_are_of_no_use_are_refused(wrong: dict[str, Any], why: str) -> None:
    given = msgspec.to_builtins(entry()) | wrong
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert(given, Entry)
