"""Products in int8: how far quantising moves numbers, sums against NumPy's integers, rows by themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import PartitionSpec as P

from kernel_cases import GATES
from mis_kernels.activations import Gate
from mis_kernels.backends import ANY_HEADS
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.quantized import (
    LARGEST,
    QuantizedRows,
    QuantizedWeight,
    block_of,
    hadamard,
    quantize,
    quantize_rows,
)
from mis_kernels.weights import FoldedNorm

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))
MATRICES = hnp.arrays(np.float32, SHAPES, elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))


def matrices(rows: int, depth: int, columns: int, layers: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return activations of very different rows, and weights of very different channels."""
    rng = np.random.default_rng((rows, depth, columns))
    x = rng.standard_normal((rows, depth)) * 10.0 ** rng.integers(-3, 3, (rows, 1))
    weight = rng.standard_normal((layers, depth, columns)) * 10.0 ** rng.integers(-3, 1, (layers, 1, columns))
    return x.astype(np.float32), weight.astype(np.float32)


def bound(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return how far a product may be off: each factor is off by half a step of its row or channel."""
    row, channel = (np.abs(each).max(axis=axis, keepdims=True) / LARGEST / 2 for each, axis in ((x, 1), (weight, 0)))
    of_channels, of_rows = np.abs(x).sum(axis=1, keepdims=True) * channel, row * np.abs(weight).sum(axis=0)
    return (of_channels + of_rows + len(weight) * row * channel) * 1.001


@given(weight=MATRICES)
@example(weight=np.array([[1.1754944e-38]], np.float32))
def test_weights_move_by_half_a_step_of_their_channel(weight: np.ndarray) -> None:
    found = quantize(weight)
    step = np.abs(weight).max(axis=0) / LARGEST
    np.testing.assert_array_equal(found.scales, step)
    assert (np.abs(found.values.astype(int)).max(axis=0) == np.where(step > 0, LARGEST, 0)).all()
    assert (np.abs(found.values * found.scales - weight) <= step * 0.50001).all()


@settings(max_examples=30, deadline=None)
@given(x=hnp.arrays(np.float32, (4, 6), elements=st.floats(-1e6, 1e6, width=32)))
def test_rows_move_by_half_a_step_of_their_own(x: np.ndarray) -> None:
    x = np.where(np.abs(x) < 1e-30, 0, x)
    values, scales = map(np.asarray, jax.jit(quantize_rows)(x))
    step = np.abs(x).max(axis=1, keepdims=True) / LARGEST
    np.testing.assert_allclose(scales, step, rtol=1e-6)
    assert (np.abs(values * scales - x) <= step * 0.50001).all()
    assert not values[~x.any(axis=1)].any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 5), (64, 2048, 96)])
def test_integers_are_summed_exactly(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(shape)
    values, x = (rng.integers(-127, 128, size, np.int8) for size in ((depth, columns), (rows, depth)))
    weight = QuantizedWeight(jnp.asarray(values), jnp.ones(columns))
    given = QuantizedRows(jnp.asarray(x), jnp.ones((rows, 1)))
    found = jax.jit(lambda rows, weight: weight.product(rows))(given, weight)
    np.testing.assert_array_equal(np.asarray(found), x.astype(np.int32) @ values.astype(np.int32))


@pytest.mark.parametrize(("dtype", "gate"), [("float32", "gelu_tanh"), ("bfloat16", "silu")])
def test_every_product_of_a_layer_takes_them(dtype: str, gate: Gate) -> None:
    """Residual, folded norm, gate and bias as for plain weights, and within what quantising may change."""
    x, weight = matrices(64, 96, 32, layers=2)
    x = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    wide, backend = x.astype(np.float32), XlaCpuBackend(ANY_HEADS, dtype)
    rounding = 0.01 if dtype == "bfloat16" else 1e-5
    stored = jax.tree.map(jnp.asarray, backend.pack_quantized(quantize(weight), 96, 32))
    residual, squares = (np.random.default_rng(1).random(size).astype(np.float32) for size in ((64, 32), (64, 1)))
    norm = FoldedNorm(jnp.asarray(squares), 1e-6)
    factor = np.asarray(norm.factor(96))

    @jax.jit
    def products(x: jax.Array, stored: QuantizedWeight) -> tuple[jax.Array, jax.Array]:
        second = stored.at_layer(jnp.int32(1))
        gated = stored[...].gated_linear(x, jnp.asarray(residual[:2]), norm, gate)
        return second.linear(x, jnp.asarray(residual).astype(x.dtype), norm), gated

    found, gated = (np.asarray(each, np.float32) for each in products(x, stored))
    exact = wide @ weight[1] * factor
    assert (np.abs(found - exact - residual) <= factor * bound(wide, weight[1]) + rounding * (np.abs(exact) + 1)).all()
    rows = quantize_rows(jnp.asarray(x))
    gates, up = (np.asarray(stored[n].product(rows) * factor + residual[n], np.float64) for n in range(2))
    wanted = GATES[gate](gates) * up
    # In float32, the sum of 1 and a tanh near minus 1 is what tanh was rounded to.
    assert (np.abs(gated - wanted) <= rounding * np.abs(wanted) + 1e-6 * (1 + np.abs(gates * up))).all()


def test_turning_shares_what_stands_out() -> None:
    """An element 300 times as large as the others leaves them less than one step, unless its block shares it."""
    x = np.random.default_rng(0).uniform(-1, 1, (64, 192)).astype(np.float32)
    x[:, 17] = 300

    def error(block: int) -> float:
        rows = jax.jit(quantize_rows, static_argnums=1)(x, block)
        unit = quantize(np.eye(192, dtype=np.float32), block)  # exact, since turned units are ones and minus ones
        return float(np.abs(jax.tree.map(jnp.asarray, unit).product(rows) - x).mean())

    assert block_of(192) == 64
    assert error(64) < 0.3 * error(1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rows_bits_do_not_depend_on_the_others(dtype: str) -> None:
    x, weight = matrices(192, 96, 160)
    stored = jax.tree.map(jnp.asarray, quantize(weight, 32)[0])
    linear = jax.jit(lambda x, stored: stored.linear(x.astype(dtype)).astype(jnp.float32))
    whole = np.asarray(linear(x, stored))
    for first in range(0, 192, 64):
        among = np.concatenate([x[first : first + 64][::-1], x[:64] * 1000])
        np.testing.assert_array_equal(np.asarray(linear(among, stored))[:64][::-1], whole[first : first + 64])
        np.testing.assert_array_equal(np.asarray(linear(x[first : first + 64], stored)), whole[first : first + 64])


@pytest.mark.parametrize(
    ("cut", "scales"), [(P(None, None, "t"), P(None, "t")), (P(None, "t"), P(None, None)), (P(), P(None, None))]
)
def test_scales_are_cut_with_the_channels(cut: P, scales: P) -> None:
    found: Any = quantize(np.ones((3, 8, 4), np.float32)).partition(cut)
    assert (found.values, found.scales) == (cut, scales)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("block", [1, 64])
def test_only_a_row_with_nan_or_infinity_gives_nan(spoilt: float, block: int) -> None:
    """Also where a later block has a larger element, behind which a maximum would forget it."""
    x = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)
    x[1, 3], x[1, 200] = spoilt, 1e6
    scales = np.asarray(jax.jit(quantize_rows, static_argnums=1)(x, block).scales)[:, 0]
    assert np.isnan(scales).tolist() == [False, True, False]


@pytest.mark.parametrize("value", [3e37, 180 * 2.0**-149])
@pytest.mark.parametrize("block", [1, 4])
def test_weights_at_the_ends_of_floats_keep_their_sign(value: float, block: int) -> None:
    weight = np.array([[value], [-value], [value], [value]], np.float32)
    found = quantize(weight, block)
    assert np.isfinite(found.scales).all()
    turned = found.values[:, 0].astype(int) @ np.asarray(hadamard(block) if block > 1 else np.eye(4))
    assert (np.sign(turned) == np.sign(weight[:, 0])).all()
