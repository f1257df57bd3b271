"""Products with packed weights: against NumPy, row by row the same bits, and a stack used layer by layer."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import GATES, NEEDS_NATIVE
from mis_kernels import to_bits
from mis_kernels.activations import Gate
from mis_kernels.backends.native.packed import PackedWeight, fits, pack
from mis_testing.bits import assert_bits_equal
from mis_testing.tolerances import ROUNDED_ONCE

pytestmark = NEEDS_NATIVE

SHAPES = [(32, 32, 32), (64, 64, 96), (96, 1024, 160), (640, 544, 64), (1056, 96, 1120)]  # rows, in, out


def bits(x: np.ndarray) -> np.ndarray:
    return np.asarray(jnp.asarray(x, jnp.bfloat16)).view(np.uint16)


def exact(x: np.ndarray) -> np.ndarray:
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)


def tensors(rows: int, depth: int, columns: int, layers: int = 2) -> tuple[jax.Array, np.ndarray]:
    rng = np.random.default_rng((rows, depth, columns))
    x = jnp.asarray(rng.standard_normal((rows, depth)), jnp.bfloat16)
    return x, rng.standard_normal((layers, depth, columns)) / depth**0.5


def stack(weight: np.ndarray) -> PackedWeight:
    return PackedWeight(jnp.asarray(pack(bits(weight))))


def linear(x: jax.Array, weight: PackedWeight, layer: int = 1, gate: Gate = "silu") -> jax.Array:
    def multiply(x: jax.Array, weight: PackedWeight, layer: jax.Array) -> jax.Array:
        own = weight.at_layer(layer)
        return own.gated_linear(x, gate=gate) if own.is_pair else own.linear(x)

    return jax.jit(multiply)(x, weight, jnp.int32(layer))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layer", [0, 1])
def test_equals_numpy(shape: tuple[int, int, int], layer: int) -> None:
    x, weight = tensors(*shape)
    found = np.asarray(linear(x, stack(weight), layer), np.float64)
    np.testing.assert_allclose(found, exact(x) @ exact(weight[layer]), atol=ROUNDED_ONCE, rtol=ROUNDED_ONCE)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_residual_is_added_before_rounding(shape: tuple[int, int, int]) -> None:
    x, weight = tensors(*shape)
    residual = jnp.asarray(np.random.default_rng(7).standard_normal((shape[0], shape[2])) * 100, jnp.bfloat16)
    found = jax.jit(lambda *given: given[1].at_layer(jnp.int32(1)).linear(given[0], given[2]))(
        x, stack(weight), residual
    )
    wanted = jnp.asarray(exact(residual) + exact(x) @ exact(weight[1]), jnp.bfloat16)
    assert np.mean(np.asarray(found) == np.asarray(wanted)) > 0.99  # rounded once: the rest are ties and their like
    pair = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_allclose(*pair, rtol=ROUNDED_ONCE, atol=ROUNDED_ONCE)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pair_is_gated(shape: tuple[int, int, int]) -> None:
    x, gate = tensors(*shape)
    up = np.random.default_rng(9).standard_normal(gate.shape) / shape[1] ** 0.5
    pair = np.stack([gate, up], axis=1)
    left, right = exact(x) @ exact(gate[1]), exact(x) @ exact(up[1])
    for gate, activated in GATES.items():
        found = np.asarray(linear(x, stack(pair), gate=gate), np.float64)
        np.testing.assert_allclose(found, activated(left) * right, atol=ROUNDED_ONCE, rtol=ROUNDED_ONCE)
        assert np.abs(np.asarray(linear(x, stack(pair[:, ::-1]), gate=gate), np.float64) - found).max() > 0.1


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("size", [300.0, 1e30], ids=["large", "of an infinite square"])
def test_extreme_gates_do_not_overflow(gate: Gate, size: float) -> None:
    x = jnp.ones((32, 32), jnp.bfloat16)
    pair = np.stack([np.full((1, 32, 32), -size), np.ones((1, 32, 32))], axis=1)
    assert not np.asarray(linear(x, stack(pair), 0, gate), np.float32).any()
    pair[:, 0] = size
    found = np.asarray(linear(x, stack(pair), 0, gate), np.float32)
    np.testing.assert_allclose(found, 32 * size * 32, rtol=ROUNDED_ONCE)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_a_rows_bits_do_not_depend_on_the_others(shape: tuple[int, int, int]) -> None:
    x, weight = tensors(*shape)
    whole = np.asarray(linear(x, stack(weight)))
    for first in range(0, shape[0] - 31, 32):
        moved = jnp.concatenate([x[first : first + 32][::-1], x[:32] * 3])
        np.testing.assert_array_equal(np.asarray(linear(moved, stack(weight)))[:32][::-1], whole[first : first + 32])


FEW = (1, 2, 3, 8, 13, 14, 15, 17, 29, 43, 64, 255, 256, 300)


@pytest.mark.parametrize("counts", [FEW, pytest.param(range(1, 301), marks=pytest.mark.full)], ids=["some", "all"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_rows_bits_do_not_depend_on_how_many_there_are(counts: Iterable[int], gated: bool) -> None:
    """Beside a product that takes several blocks of rows and passes of summands."""
    x, weight = tensors(640, 1056, 64)
    packed = stack(np.stack([weight, weight[::-1]], axis=1) if gated else weight).at_layer(jnp.int32(1))
    multiply = jax.jit(lambda x, weight: weight.product(x))
    whole = np.asarray(to_bits(multiply(x, packed)))
    for count in counts:
        first = count * 7 % (640 - count)
        some = np.asarray(to_bits(multiply(x[first : first + count], packed)))
        np.testing.assert_array_equal(some, whole[first : first + count])


def test_layers_of_a_scan_use_the_stack_in_place() -> None:
    x, weight = tensors(64, 64, 64, layers=3)
    packed = stack(weight)

    def layers(x: jax.Array, packed: PackedWeight) -> jax.Array:
        return jax.lax.scan(lambda x, layer: (packed.at_layer(layer).product(x), None), x, jnp.arange(3))[0]

    expected = x
    for layer in range(3):
        expected = linear(expected, packed, layer)
    np.testing.assert_array_equal(np.asarray(jax.jit(layers)(x, packed)), np.asarray(expected))


def test_tiles_hold_pairs_of_summands_by_column() -> None:
    weight = np.arange(64 * 32, dtype=np.uint16).reshape(64, 32)
    tiles = pack(weight)
    assert tiles.shape == (2, 2, 512)
    # Columns 16 to 31, summands 32 to 63; pair 3, column 20, second of the pair.
    assert tiles[1, 1].reshape(16, 16, 2)[3, 4, 1] == weight[32 + 7, 20]


def test_misuse_is_named() -> None:
    x, weight = tensors(64, 64, 64)
    with pytest.raises(ValueError, match="weight: choose a layer"):
        stack(weight).product(x)
    assert fits(64, 96)
    assert not fits(64, 48)


@pytest.mark.parametrize("shape", [(96, 64, 160), (640, 544, 64)])
@pytest.mark.parametrize("gated", [False, True])
def test_trailing_rows_of_zeros_change_no_other_row(shape: tuple[int, int, int], gated: bool) -> None:
    """Padding is such rows; what is added to them is there all the same."""
    x, weight = tensors(*shape)
    packed = stack(np.stack([weight, weight[:, ::-1]], axis=1) if gated else weight)
    residual = jnp.asarray(np.random.default_rng(7).standard_normal((shape[0], shape[2])), jnp.bfloat16)

    @jax.jit
    def multiply(x: jax.Array, weight: PackedWeight) -> jax.Array:
        own = weight.at_layer(jnp.int32(1))
        return own.gated_linear(x) if gated else own.linear(x, residual)

    added = np.zeros_like(residual) if gated else np.asarray(residual)
    for used in (0, 1, shape[0] // 3, shape[0] - 1):
        cut = x.at[used:].set(-0.0).at[: used // 2 : 2].set(0)  # zeros of any sign, and within
        found = np.asarray(multiply(cut, packed))
        assert_bits_equal(found[:used], np.asarray(multiply(cut.at[used:].set(1), packed))[:used])
        assert_bits_equal(found[used:], added[used:])
