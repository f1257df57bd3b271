"""What is fitted to labelled rows, and what is kept of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import binomtest

from mis_core.calibration import Identity
from mis_core.calibration.fit import CannotFit, Examples, _folds, fit_entry


def examples(
    rows: int = 1000,
    labels: int = 2,
    temperature: float = 1.0,
    bias: tuple[float, ...] = (),
    seed: int = 0,
    groups: int | None = None,
) -> Examples:
    """Rows whose right labels are drawn from their logits over a temperature, plus a bias."""
    random = np.random.default_rng(seed)
    logprobs = log_softmax(random.normal(0, 3, (rows, labels)), axis=1)
    truth = softmax(logprobs / temperature + (bias or 0.0), axis=1)
    right = (random.random((rows, 1)) > truth.cumsum(axis=1)).sum(axis=1).clip(0, labels - 1)
    group = np.arange(rows) if groups is None else random.integers(0, groups, rows)
    return Examples(logprobs, right, np.ones(rows), group)


def fitted(given: Examples, **options: Any) -> Any:
    count = given.logprobs.shape[1]
    identity = Identity(task="score", labels=tuple((label,) for label in range(count)), item_first=False)
    return fit_entry(identity, given, **options)


def loss_of(values: np.ndarray, given: Examples) -> float:
    """The log loss with `temperature, bias...`, and the penalty on biases, as plain NumPy."""
    logits = given.logprobs / values[0] + values[1:]
    likelihood = softmax(logits, axis=1)[np.arange(len(given)), given.right]
    return float(-np.log(likelihood).sum() + (values[1:] ** 2).sum() / 2)


@pytest.mark.parametrize(("labels", "bias"), [(2, (-0.7, 0.7)), (4, (0.5, -0.5, 1.0, -1.0))])
def test_temperature_and_bias_are_found(labels: int, bias: tuple[float, ...]) -> None:
    given = examples(4000, labels, 2.5, bias)
    scaling = fitted(given).scaling
    assert scaling.temperature == pytest.approx(2.5, rel=0.1)
    np.testing.assert_allclose(scaling.bias, bias, atol=0.15)
    # An optimiser that knows no slopes finds the same.
    bounds = [(0.1, 10), *[(-5, 5)] * labels]
    plain = minimize(loss_of, [1.0, *[0.0] * labels], (given,), method="Powell", bounds=bounds).x
    assert scaling.temperature == pytest.approx(plain[0], rel=0.01)
    np.testing.assert_allclose(scaling.bias, plain[1:] - plain[1:].mean(), atol=0.01)


def test_rows_that_bear_probabilities_out_change_nothing() -> None:
    entry = fitted(examples(1000))
    assert entry.scaling is None
    assert not entry.curves
    assert entry.raw == entry.calibrated
    assert "stay as they are" in entry.notes[0]


def test_a_temperature_alone_has_no_bias() -> None:
    entry = fitted(examples(1000, temperature=3.0, seed=3))
    assert entry.scaling.temperature == pytest.approx(3.0, rel=0.2)
    assert entry.scaling.bias == ()


@pytest.mark.parametrize(("rows", "has_curve"), [(2000, True), (199, False)])
def test_what_no_temperature_mends_gets_a_curve_from_200_rows_on(rows: int, has_curve: bool) -> None:
    given = examples(rows)
    positive = np.exp(given.logprobs[:, 1])
    truth = np.where(positive < 0.5, 0.2, 0.9)  # no sigmoid
    right = (np.random.default_rng(1).random(rows) < truth).astype(int)
    entry = fitted(Examples(given.logprobs, right, given.weights, given.groups))
    assert bool(entry.curves) is has_curve
    if has_curve:
        found = entry.apply(given.logprobs)[:, 1]
        assert abs(found[positive < 0.4].mean() - 0.2) < 0.03
        assert entry.calibrated.log_loss < entry.raw.log_loss


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_neither_the_order_of_rows_nor_that_of_labels_matters(seed: int) -> None:
    given = examples(60, 3, 2.5, (1.0, 0.0, -1.0), seed)
    random = np.random.default_rng(seed)
    rows, labels = random.permutation(60), random.permutation(3)
    place = np.argsort(labels)
    other = Examples(
        given.logprobs[rows][:, labels], place[given.right[rows]], given.weights, np.argsort(rows)[rows][given.groups]
    )
    # Folds are dealt by chance, so what is compared is what is fitted to all rows.
    one, two = (_scaling_of(each) for each in (given, other))
    assert one[0] == pytest.approx(two[0], rel=1e-5)
    np.testing.assert_allclose(np.array(one[1])[labels], two[1], atol=1e-5)


def _scaling_of(given: Examples) -> tuple[float, tuple[float, ...]]:
    from mis_core.calibration.fit import _scaling

    found = _scaling(given, with_bias=True)
    return found.temperature, found.bias


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), groups=st.integers(2, 40))
def test_rows_with_something_in_common_are_in_one_fold(seed: int, groups: int) -> None:
    given = examples(100, seed=seed, groups=groups)
    folds = _folds(given)
    for group in np.unique(given.groups):
        assert len(np.unique(folds[given.groups == group])) == 1
    assert len(np.unique(folds)) == min(5, len(np.unique(given.groups)))


def test_a_row_of_weight_two_is_two_rows() -> None:
    given = examples(300, temperature=2.5, bias=(-0.7, 0.7))
    weights = np.where(np.arange(300) < 100, 2.0, 1.0)
    twice = np.r_[np.arange(100), np.arange(300)]
    one = _scaling_of(Examples(given.logprobs, given.right, weights, given.groups))
    two = _scaling_of(given.part(twice))
    # The penalty on a bias counts rows, of which there are fewer; it is small beside 300.
    assert one[0] == pytest.approx(two[0], rel=0.01)
    np.testing.assert_allclose(one[1], two[1], atol=0.01)


def test_thresholds_are_where_enough_held_out_rows_are_right() -> None:
    entry = fitted(examples(2000, temperature=2.0), act=0.9, review=0.5)
    assert 0 < entry.act.coverage < entry.review.coverage <= 1
    assert entry.review.confidence < entry.act.confidence < 1
    assert entry.act.observed >= 0.9
    count = round(entry.act.coverage * 2000)
    low = binomtest(round(entry.act.observed * count), count).proportion_ci(0.95, "exact").low
    assert entry.act.at_least == pytest.approx(low, rel=1e-6)
    assert fitted(examples(100, temperature=100.0), act=0.999).act.confidence is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_few_lucky_rows_make_no_threshold(seed: int) -> None:
    noise = examples(100, temperature=1000.0, seed=seed)
    assert fitted(noise).act.confidence is None
    sure = examples(100, temperature=0.1, seed=seed, groups=19)
    assert fitted(sure, act=0.5).act.confidence is None  # all rows are right, and few have nothing in common


def test_what_is_shaky_is_said() -> None:
    few = fitted(examples(12, temperature=3.0, seed=1))
    assert any(note.startswith("Provisional: 12 rows") for note in few.notes)
    given = examples(100, 3)
    right = np.where(given.right == 2, 0, given.right)
    assert "No row has the label '2'." in fitted(Examples(given.logprobs, right, given.weights, given.groups)).notes
    assert any("something in common" in note for note in fitted(examples(100, groups=20)).notes)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (examples(9), "has 9 rows; at least 10"),
        (Examples(np.log(np.full((20, 2), 0.5)), np.zeros(20, int), np.ones(20), np.arange(20)), "one label only"),
        (
            Examples(np.full((20, 2), np.nan), np.arange(20) % 2, np.ones(20), np.arange(20)),
            "row 1 that are not finite",
        ),
        (examples(20, groups=1), "all have something in common"),
    ],
)
def test_rows_that_say_nothing_are_refused_in_a_sentence(given: Examples, why: str) -> None:
    with pytest.raises(CannotFit, match=why) as refused:
        fitted(given)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("labels", [2, 3])
def test_figures_are_their_formulas(labels: int) -> None:
    given = examples(200, labels)  # which nothing changes, so that held-out probabilities are the raw ones
    entry = fitted(given)
    assert entry.scaling is None
    probabilities = np.exp(given.logprobs)
    right = probabilities[np.arange(200), given.right]
    wrong = np.eye(labels)[given.right] - probabilities
    assert entry.raw.log_loss == pytest.approx(-np.mean(np.log(right)))
    assert entry.raw.brier == pytest.approx((wrong**2).sum(axis=1).mean() / (2 if labels == 2 else 1))
    assert entry.raw.accuracy == pytest.approx(np.mean(probabilities.argmax(axis=1) == given.right))
