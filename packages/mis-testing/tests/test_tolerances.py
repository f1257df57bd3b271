"""Comparisons of scores: they pass what is close, fail what is not, and say where."""

import numpy as np
import pytest

from mis_testing.tolerances import TOLERANCES, assert_scores_close

SOFTMAX = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]])
PROBABILITY = np.array([[7e-3, 2e-9, 1e-5], [3e-4, 5e-1, 2e-4]])


@pytest.mark.parametrize(("dtype", "reference"), TOLERANCES)
def test_equal_scores_pass(dtype: str, reference: str) -> None:
    assert_scores_close(SOFTMAX, SOFTMAX, dtype, "label_softmax", reference)
    assert_scores_close(PROBABILITY, PROBABILITY, dtype, "probability", reference)
    assert_scores_close(np.log(PROBABILITY), np.log(PROBABILITY), dtype, "logprob", reference)


@pytest.mark.parametrize(("dtype", "reference"), TOLERANCES)
def test_half_the_tolerance_passes_and_twice_fails(dtype: str, reference: str) -> None:
    limit = TOLERANCES[dtype, reference]
    step = np.array([[1, -1, 0], [0, 0, 0]]) * limit.softmax
    assert_scores_close(SOFTMAX + step / 2, SOFTMAX, dtype, "label_softmax", reference)
    with pytest.raises(AssertionError, match="label softmax: 2 of 6"):
        assert_scores_close(SOFTMAX + step * 2, SOFTMAX, dtype, "label_softmax", reference)
    with pytest.raises(AssertionError, match="log-probability: 6 of 6"):
        assert_scores_close(PROBABILITY * (1 + 2 * limit.logprob), PROBABILITY, dtype, "probability", reference)


def test_a_wrong_value_near_zero_is_seen() -> None:
    wrong = PROBABILITY.copy()
    wrong[0, 1] = 4e-9
    np.testing.assert_allclose(wrong, PROBABILITY, atol=1e-6)  # what a comparison of raw probabilities would say
    with pytest.raises(AssertionError, match="worst at item 0, label 1"):
        assert_scores_close(wrong, PROBABILITY, "bfloat16", "probability")


def test_many_small_differences_fail_on_their_mean() -> None:
    step = np.array([[1, -1], [-1, 1]]) * 0.015
    with pytest.raises(AssertionError, match=r"mean difference 0\.015 > 0\.01"):
        assert_scores_close(np.full((2, 2), 0.5) + step, np.full((2, 2), 0.5), "bfloat16")


def test_swapped_items_fail() -> None:
    with pytest.raises(AssertionError, match="label softmax"):
        assert_scores_close(SOFTMAX[::-1], SOFTMAX, "bfloat16")


@pytest.mark.parametrize("what", ["label_softmax", "probability"])
def test_missing_labels_must_be_missing_in_both(what: str) -> None:
    ragged = np.array([[0.5, 0.5, np.nan], [0.2, 0.3, 0.5]])
    assert_scores_close(ragged, ragged, "float32", what)
    with pytest.raises(AssertionError, match="NaN in one array only: item 0, label 2"):
        assert_scores_close(np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), ragged, "float32", what)


def test_zero_is_no_probability() -> None:
    with pytest.raises(AssertionError, match="not positive: item 1, label 0"):
        assert_scores_close(np.array([[0.5], [0.0]]), np.array([[0.5], [0.1]]), "float32", "probability")


def test_rows_that_are_no_softmax_are_refused() -> None:
    with pytest.raises(AssertionError, match="must sum to 1; item 0"):
        assert_scores_close(PROBABILITY, PROBABILITY, "float32")


def test_shapes_must_match_and_not_be_empty() -> None:
    with pytest.raises(AssertionError, match="shapes differ"):
        assert_scores_close(SOFTMAX[:1], SOFTMAX, "float32")
    with pytest.raises(AssertionError, match="no scores"):
        assert_scores_close(SOFTMAX[:0], SOFTMAX[:0], "float32")
