"""Packed products in float32: against NumPy, the same bits in any number of rows and on every CPU."""

import ctypes
import os
import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import GATES, NEEDS_FLOAT32
from mis_kernels.backends.native import library
from mis_kernels.backends.native.packed import PackedWeight, pack
from mis_testing.bits import assert_bits_equal

pytestmark = NEEDS_FLOAT32

SHAPES = [(1, 32, 32), (64, 64, 96), (96, 1024, 160), (640, 544, 64)]  # rows, in, out
CLOSE = 2e-6


def tensors(rows: int, depth: int, columns: int) -> tuple[jax.Array, np.ndarray]:
    rng = np.random.default_rng((rows, depth, columns))
    weight = rng.standard_normal((2, 2, depth, columns), np.float32) / np.float32(depth**0.5)
    return jnp.asarray(rng.standard_normal((rows, depth), np.float32)), weight


def layer(weight: np.ndarray) -> PackedWeight:
    """The second layer of a stack."""
    return PackedWeight(jnp.asarray(pack(weight))).at_layer(jnp.int32(1))


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy(shape: tuple[int, int, int]) -> None:
    x, weight = tensors(*shape)
    residual = jnp.asarray(np.random.default_rng(7).standard_normal((shape[0], shape[2]), np.float32))
    expected = np.asarray(x, np.float64) @ weight[1, 0].astype(np.float64)
    found = np.asarray(layer(weight[:, 0]).linear(x))
    np.testing.assert_allclose(found, expected, atol=2 * CLOSE)  # of sums that are about 1
    added = np.asarray(layer(weight[:, 0]).linear(x, residual))
    np.testing.assert_array_equal(added, found + np.asarray(residual))


@pytest.mark.parametrize("gate", GATES)
def test_a_pair_is_gated(gate: str) -> None:
    x, weight = tensors(96, 64, 160)
    left, right = (np.asarray(x, np.float64) @ weight[1, i].astype(np.float64) for i in (0, 1))
    found = np.asarray(layer(weight).gated_linear(x, gate=gate))
    np.testing.assert_allclose(found, GATES[gate](left) * right, atol=2 * CLOSE, rtol=2 * CLOSE)


@pytest.mark.parametrize("size", [300.0, 1e18], ids=["large", "of an infinite cube"])
@pytest.mark.parametrize("gate", GATES)
def test_extreme_gates_do_not_overflow(gate: str, size: float) -> None:
    x = jnp.ones((3, 32), jnp.float32)
    pair = np.stack([np.full((2, 32, 32), size), np.ones((2, 32, 32))], axis=1).astype(np.float32)
    np.testing.assert_allclose(np.asarray(layer(pair).gated_linear(x, gate=gate)), 32 * size * 32, rtol=CLOSE)
    pair[:, 0] = -size
    assert not np.asarray(layer(pair).gated_linear(x, gate=gate)).any()


@pytest.mark.parametrize("counts", [(1, 5, 6, 7, 14, 15, 64, 225), pytest.param(range(1, 301), marks=pytest.mark.full)])
def test_a_rows_bits_do_not_depend_on_how_many_there_are(counts: range) -> None:
    """Beside a product that takes several blocks of rows and passes of summands."""
    x, weight = tensors(640, 544, 64)
    multiply, packed = jax.jit(lambda x, weight: weight.gated_linear(x)), layer(weight)
    whole = np.asarray(multiply(x, packed))
    for count in counts:
        first = count * 7 % (640 - count)
        assert_bits_equal(np.asarray(multiply(x[first : first + count], packed)), whole[first : first + count])


@pytest.mark.skipif(platform.machine() != "x86_64" or "MIS_NATIVE_LIBRARY" in os.environ, reason="needs an x86-64 CPU")
def test_bits_are_the_same_without_avx_512() -> None:
    """Both libraries in one process, each under names of its own."""
    x, weight = tensors(96, 544, 64)
    other = ctypes.CDLL(str(library.path_for_avx2()))
    jax.ffi.register_ffi_target("float32_for_avx2", jax.ffi.pycapsule(other.mis_float32_packed_linear), platform="cpu")
    call = jax.ffi.ffi_call("float32_for_avx2", jax.ShapeDtypeStruct((96, 64), jnp.float32))
    packed, nothing = layer(weight), jnp.zeros((0, 0), jnp.float32)
    found = call(x, packed.tiles, jnp.ones(1, jnp.int32), nothing, gate=np.int32(1))
    assert_bits_equal(np.asarray(found), np.asarray(packed.gated_linear(x)))
