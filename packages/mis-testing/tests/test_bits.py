"""Bit equality: stricter than `==`, and it says where."""

import ml_dtypes
import numpy as np
import pytest

from mis_testing.bits import assert_bits_equal


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_a_copy_is_equal(dtype: type, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    assert_bits_equal(values, np.copy(values))


def test_equal_nans_are_equal_and_strides_do_not_matter() -> None:
    values = np.array([[np.nan, 1.0], [2.0, 3.0]], np.float32)
    assert_bits_equal(values.T, np.ascontiguousarray(values.T))


def test_the_first_difference_is_named() -> None:
    expected = np.ones((2, 3), np.float32)
    actual = expected.copy()
    actual[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    with pytest.raises(
        AssertionError, match=r"1 of 6 values .* first at index \(1, 2\): .*3f800001.* expected .*3f800000"
    ):
        assert_bits_equal(actual, expected)


def test_signed_zeros_differ() -> None:
    with pytest.raises(AssertionError, match=r"index \(\)"):
        assert_bits_equal(np.float32(0.0), np.float32(-0.0))


def test_dtype_and_shape_count() -> None:
    with pytest.raises(AssertionError, match="dtypes differ"):
        assert_bits_equal(np.zeros(2, np.float32), np.zeros(2, np.float64))
    with pytest.raises(AssertionError, match="shapes differ"):
        assert_bits_equal(np.zeros((2, 1)), np.zeros((1, 2)))
