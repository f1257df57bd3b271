"""Native products in int8: the integers of plain XLA, row by row the same bits, and a stack used layer by layer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from kernel_cases import NEEDS_INT8
from mis_kernels.backends import ANY_HEADS, Backend
from mis_kernels.backends.native import int8, library
from mis_kernels.backends.native.backend import BACKENDS, NativeInt8Backend
from mis_kernels.backends.native.int8 import TiledWeight
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.quantized import QuantizedWeight, block_of, quantize, quantize_rows
from mis_kernels.weights import Weight

SHAPES = [(64, 16, 16), (13, 64, 48), (200, 1024, 80), (450, 208, 336)]  # rows, in, out
DTYPES = ["float32", "bfloat16"]


def integers(rows: int, depth: int, columns: int, block: int) -> tuple[np.ndarray, QuantizedWeight]:
    """Return rows and a stack of three pairs whose scales are powers of 2, so that nothing is rounded."""
    rng = np.random.default_rng((rows, depth, columns))
    x = rng.integers(-3, 4, (rows, depth)).astype(np.float32)
    values = rng.integers(-128, 128, (3, 2, depth, columns)).astype(np.int8)
    return x, QuantizedWeight(values, np.full((3, 2, columns), 0.5, np.float32), block)


def on_device(weight: Weight) -> Any:
    return jax.tree.map(jnp.asarray, weight)


def read_back(x: jax.Array, block: int) -> np.ndarray:
    """Return what rows of float32 are after they were turned and quantised: their products with ones and zeros."""
    depth = x.shape[1]
    ones = QuantizedWeight(np.eye(depth, dtype=np.int8)[None], np.ones((1, depth), np.float32), block)
    weight = on_device(int8.tile(ones, depth)).at_layer(jnp.int32(0))
    return np.asarray(jax.jit(lambda x, w: w.product(x))(x, weight))


def summed(shape: tuple[int, int, int]) -> tuple[np.ndarray, QuantizedWeight, np.ndarray]:
    """Return rows of integers, a stack of weights, and the products with the last layer's."""
    rows, depth, _ = shape
    _, weight = integers(*shape, 1)
    x = np.random.default_rng(1).integers(-127, 128, (rows, depth))
    x[:, 0] = 127  # so that the scale is 1
    sums = x.astype(np.int32) @ weight.values[2, 1].astype(np.int32) / 2
    return x, weight[:, 1], sums.astype(np.float32)


@NEEDS_INT8
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_integers_of_plain_xla(shape: tuple[int, int, int], dtype: str) -> None:
    """Turned sums of small integers are exact; XLA divides by 127 in its own way, which may move a scale's last bit."""
    rows, depth, _ = shape
    for block in {1, 16, block_of(depth)}:
        x = jnp.asarray(integers(*shape, block)[0], dtype).at[rows // 2].set(0)
        plain = jax.jit(lambda x, block=block: quantize_rows(x, block))(x)
        found = read_back(x.astype(jnp.float32), block)
        np.testing.assert_array_equal(np.rint(found / np.where(plain.scales > 0, plain.scales, 1)), plain.values)
        np.testing.assert_allclose(found, plain.values * plain.scales, rtol=3e-7)


@NEEDS_INT8
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("block", [1, 64])
def test_only_a_row_with_nan_or_infinity_gives_nan(spoilt: float, block: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)
    x[1, 3], x[1, 200] = spoilt, 1e6
    found = read_back(jnp.asarray(x), block)
    assert np.isnan(found).all(axis=1).tolist() == np.isnan(found).any(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("cut", [P(None, None, "tensor"), P(None, "tensor")])
def test_every_native_backend_cuts_quantised_weights(kind: type[Backend], cut: P) -> None:
    """Also those that this CPU cannot run."""
    backend = kind(ANY_HEADS, "bfloat16")
    stored = backend.pack_quantized(quantize(np.ones((2, 64, 192), np.float32), 64), 64, 192)
    cuts: Any = stored.partition(cut)
    assert jax.tree.structure(cuts) == jax.tree.structure(stored)
    for part, whole in zip(jax.tree.leaves(cuts), jax.tree.leaves(stored), strict=True):
        assert len(part) <= whole.ndim


@NEEDS_INT8
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_numpy(shape: tuple[int, int, int]) -> None:
    x, weight, sums = summed(shape)
    tiled = on_device(int8.tile(weight, shape[1]))
    found = jax.jit(lambda x, w: w.at_layer(jnp.int32(2)).product(x))(jnp.asarray(x, jnp.float32), tiled)
    np.testing.assert_array_equal(found, sums)


@NEEDS_INT8
@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_residual_is_added_to_the_rounded_product(shape: tuple[int, int, int], dtype: str) -> None:
    """Bit by bit what plain XLA and NumPy make of it: a product in bfloat16 is rounded by itself, and with the sum."""
    kind = jnp.dtype(dtype)
    x, weight, sums = summed(shape)
    residual = np.random.default_rng(2).normal(0, 3000, sums.shape).astype(kind)
    twice = (sums.astype(kind).astype(np.float32) + residual.astype(np.float32)).astype(kind)
    once = (sums + residual.astype(np.float32)).astype(kind)
    assert (once == twice).all() == (dtype == "float32")
    add = jax.jit(lambda x, residual, stored: stored.at_layer(jnp.int32(2)).linear(x, residual))
    for stored in (weight, int8.tile(weight, shape[1])):
        found = add(jnp.asarray(x, kind), jnp.asarray(residual), on_device(stored))
        assert found.dtype == kind
        np.testing.assert_array_equal(np.asarray(found), twice)


@NEEDS_INT8
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_those_of_plain_xla(shape: tuple[int, int, int], dtype: str) -> None:
    rows, depth, columns = shape
    native, plain = NativeInt8Backend(ANY_HEADS, dtype), XlaCpuBackend(ANY_HEADS, dtype)
    rng = np.random.default_rng(shape)
    weight = quantize(rng.standard_normal((3, 2, depth, columns)).astype(np.float32) / depth**0.5, block_of(depth))
    x = jnp.asarray(rng.standard_normal((rows, depth)), dtype)

    def products(backend: XlaCpuBackend) -> list[np.ndarray]:
        stored = on_device(backend.pack_quantized(weight, depth, columns))
        assert isinstance(stored, TiledWeight) == (backend is native)

        @jax.jit
        def of_layer(x: jax.Array, stored: Weight, layer: jax.Array) -> list[jax.Array]:
            pair = stored.at_layer(layer)
            return [
                pair.gated_linear(x),
                pair.gated_linear(x, gate="gelu_tanh"),
                pair.gated_linear(x, jnp.ones((2, columns), x.dtype), gate="gelu_tanh"),
            ]

        return [np.asarray(each, np.float32) for each in of_layer(x, stored, jnp.int32(1))]

    for found, wanted in zip(products(native), products(plain), strict=True):
        np.testing.assert_allclose(found, wanted, atol=0.05)  # an integer at the edge of its step may be the next one
        assert np.abs(found - wanted).mean() < 0.002


@NEEDS_INT8
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_a_rows_bits_do_not_depend_on_the_others(shape: tuple[int, int, int]) -> None:
    x, weight = integers(*shape, block_of(shape[1]))
    x = x * np.pi
    tiled = on_device(int8.tile(weight, shape[1])).at_layer(jnp.int32(1))
    gated = jax.jit(lambda x, w: w.product(x, gate="gelu_tanh"))
    whole = np.asarray(gated(x, tiled))
    for first in (0, 5, shape[0] - 7):
        among = np.concatenate([x[:11] * 100, x[first : first + 7][::-1]])
        np.testing.assert_array_equal(np.asarray(gated(among, tiled))[11:][::-1], whole[first : first + 7])


@NEEDS_INT8
@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("half", [0, slice(None)])
def test_trailing_rows_of_zeros_change_no_other_row(shape: tuple[int, int, int], half: int | slice) -> None:
    x, weight = integers(*shape, block_of(shape[1]))
    x, tiled = np.asarray(x * np.pi), on_device(int8.tile(weight[:, half], shape[1])).at_layer(jnp.int32(1))
    multiply = jax.jit(lambda x, w: w.product(x))
    whole = np.asarray(multiply(x, tiled))
    for used in (0, 1, shape[0] // 3, shape[0] - 1):
        found = np.asarray(multiply(np.where(np.arange(len(x))[:, None] < used, x, 0), tiled))
        np.testing.assert_array_equal(found[:used], whole[:used])
        assert not found[used:].any()


@pytest.mark.parametrize(("depth", "has_tiles", "added"), [(64, True, 0), (32, True, 128), (64, False, 128)])
def test_tiles_hold_four_summands_by_column(
    monkeypatch: pytest.MonkeyPatch, depth: int, has_tiles: bool, added: int
) -> None:
    """Vectors take unsigned weights, tile registers signed ones."""
    monkeypatch.setattr(library, "has_int8_tiles", lambda: has_tiles)
    weight = np.random.default_rng(0).integers(-128, 128, (3, 128, 48)).astype(np.int8)
    tiled = int8.tile(QuantizedWeight(weight, np.ones((3, 48), np.float32), 16), depth)
    assert tiled.values.shape == (3, 3, 32, 64)
    assert tiled.block == 16
    # Columns 16 to 31, summands 20 to 23; column 18, third summand.
    assert tiled.values[2, 1, 5].reshape(16, 4)[2, 2] == int(weight[2, 22, 18]) + added


@pytest.mark.parametrize(
    ("cut", "values", "scales"),
    [
        (P(None, None, None, "t"), P(None, None, "t", None), P(None, None, "t")),
        (P(None, None, "t"), P(None, None, None, "t"), P(None, None, None)),
    ],
)
def test_tiles_are_cut_like_plain_weights(cut: P, values: P, scales: P) -> None:
    """What each of two devices has of the tiles is what it would make of its own part."""
    weight = np.random.default_rng(0).integers(-128, 128, (3, 2, 32, 64)).astype(np.int8)
    tiled = int8.tile(QuantizedWeight(weight, np.ones((3, 2, 64), np.float32)), 16)
    found: Any = tiled.partition(cut)
    assert (found.values, found.scales) == (values, scales)
    parts = zip(np.split(weight, 2, cut.index("t")), np.split(tiled.values, 2, values.index("t")), strict=True)
    for part, tiles in parts:
        np.testing.assert_array_equal(int8.tile(QuantizedWeight(part, tiled.scales), 16).values, tiles)


def test_weights_that_do_not_fill_vectors_stay_as_they_are() -> None:
    backend = NativeInt8Backend(ANY_HEADS, "float32")
    weight = quantize(np.ones((1, 32, 24), np.float32))
    assert backend.pack_quantized(weight, 32, 24) is weight
    assert not int8.fits(24, 32)
    tiled = int8.tile(quantize(np.ones((1, 32, 16))), 32)
    with pytest.raises(ValueError, match="weight: choose a layer"):
        tiled.product(jnp.zeros((1, 32)))
