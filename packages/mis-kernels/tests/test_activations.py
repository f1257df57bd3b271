"""Gated products with plain weights against NumPy, and the bits of a row among others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import GATES
from mis_kernels import Gate, capped
from mis_kernels.activations import activated
from mis_kernels.weights import FoldedNorm, PlainWeight
from mis_testing.bits import assert_bits_equal
from mis_testing.tolerances import ROUNDED_ONCE, rounding

LIMIT = {"float32": rounding("float32", terms=96, magnitude=4), "bfloat16": ROUNDED_ONCE}


def tensors(dtype: str) -> tuple[jax.Array, PlainWeight, jax.Array, FoldedNorm]:
    """Rows, a pair of weights, biases and a folded norm; gates spread over all that is not straight."""
    random = np.random.default_rng(0)
    x, pair, bias = (random.standard_normal(shape) for shape in ((192, 96), (2, 96, 160), (2, 160)))
    squares = jnp.asarray(random.uniform(50, 150, (192, 1)), jnp.float32)
    cast = (jnp.asarray(each, dtype) for each in (x, pair / 96**0.5, bias))
    x, pair, bias = cast
    return x, PlainWeight(pair), bias, FoldedNorm(squares, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gate", GATES)
def test_a_pair_of_plain_weights_is_gated(gate: Gate, dtype: str) -> None:
    x, pair, bias, norm = tensors(dtype)
    found = jax.jit(lambda x, values: PlainWeight(values).gated_linear(x, bias, norm, gate))(x, pair.values)
    assert found.dtype == x.dtype
    factor = 1 / np.sqrt(np.asarray(norm.squares, np.float64) / 96 + norm.epsilon)
    wide, weights, biases = (np.asarray(each, np.float64) for each in (x, pair.values, bias))
    gates, up = (wide @ weights[n] * factor + biases[n] for n in range(2))
    wanted, limit = GATES[gate](gates) * up, LIMIT[dtype]
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, atol=limit, rtol=limit)


@pytest.mark.parametrize("gate", GATES)
def test_gates_of_any_size_are_finite(gate: Gate) -> None:
    x = jnp.asarray([[-1e30, -300, -1e-30, 0, 1e-30, 300, 1e30]], jnp.float32)
    found = np.asarray(jax.jit(lambda x: activated(x, gate))(x))
    np.testing.assert_allclose(found, np.maximum(x, 0), atol=1e-30)


def test_a_rows_bits_do_not_depend_on_the_others() -> None:
    x, pair, *_ = tensors("float32")
    gated = jax.jit(lambda x, values: PlainWeight(values).gated_linear(x, gate="gelu_tanh"))
    whole = np.asarray(gated(x, pair.values))
    for first in (0, 64, 128):
        among = jnp.concatenate([x[first : first + 64][::-1], x[:64] * 1000])
        assert_bits_equal(np.asarray(gated(among, pair.values))[:64][::-1], whole[first : first + 64])


def test_capping_matches_numpy_and_no_cap_changes_nothing() -> None:
    x = jnp.asarray([-np.inf, -1e30, -400, -31, -1e-3, 0, 1e-3, 31, 400, 1e30, np.inf, np.nan], jnp.float32)
    found = np.asarray(jax.jit(lambda x: capped(x, 30.0))(x))
    np.testing.assert_allclose(found, 30 * np.tanh(np.asarray(x, np.float64) / 30), rtol=1e-6)
    assert capped(x, None) is x
