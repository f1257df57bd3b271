"""Products with quantised weights on TPUs: the kernel against plain XLA's product, row by row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import EMULATED, GATES, SMALL
from mis_kernels.activations import Gate
from mis_kernels.backends import ANY_HEADS, Backend
from mis_kernels.backends.tpu import products
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.weights import KernelWeight
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.quantized import QuantizedWeight, block_of, quantize
from mis_kernels.target import compiling_for
from mis_kernels.weights import FoldedNorm
from mis_testing.bits import assert_bits_equal

TPU, PLAIN = TpuBackend(ANY_HEADS, "bfloat16", SMALL), XlaBackend(ANY_HEADS, "bfloat16")
LAYERS, LAYER, EPSILON = 3, jnp.int32(1), 1e-6


def stack(depth: int, columns: int, *, pair: bool = False, block: int | None = None) -> QuantizedWeight:
    shape = (LAYERS, *([2] if pair else []), depth, columns)
    weight = np.random.default_rng(depth).normal(size=shape).astype(np.float32)
    return jax.tree.map(jnp.asarray, quantize(weight, block_of(depth) if block is None else block))


def rows_of(count: int, width: int, dtype: str = "bfloat16", seed: int = 0) -> jax.Array:
    """Rows of which some elements stand out, the same in all of them."""
    random = np.random.default_rng((count, width, seed))
    return jnp.asarray(random.normal(size=(count, width)) * np.exp(random.normal(size=(1, width))), dtype)


def norm_of(x: jax.Array) -> FoldedNorm:
    return FoldedNorm((x.astype(jnp.float32) ** 2).sum(1, keepdims=True), EPSILON)


def layer_of(backend: Backend, weight: QuantizedWeight) -> QuantizedWeight:
    """One layer of a stack as a backend multiplies with it."""
    return backend.pack_quantized(weight, *weight.values.shape[-2:]).at_layer(LAYER)


def computed(
    backend: Backend, x: jax.Array, weight: QuantizedWeight, interpret: bool, *, gate: Gate = "silu", **others: Any
) -> np.ndarray:
    """What a backend makes of rows and one layer of a stack."""
    gated = weight.values.ndim == 4

    def run(x: jax.Array, weight: QuantizedWeight, others: dict[str, Any]) -> jax.Array:
        here = layer_of(backend, weight)
        norm = norm_of(x) if others.get("normed") is not None else None
        if gated:
            return here.gated_linear(x, norm=norm, gate=gate)
        return here.linear(x, others.get("residual"), norm)

    with compiling_for(interpret=interpret):
        return np.asarray(jax.jit(run, compiler_options=EMULATED)(x, weight, others), np.float32)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Fail unless they differ by roundings of bfloat16 alone."""
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=1e-6 * np.abs(expected).max())


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "block"), [(64, 256, 128, None), (128, 384, 640, None), (640, 128, 256, 1)]
)
def test_it_is_plain_xlas_product(rows: int, depth: int, columns: int, block: int | None, interpret: bool) -> None:
    weight, x = stack(depth, columns, block=block), rows_of(rows, depth)
    for others in ({}, {"residual": rows_of(rows, columns, seed=1)}, {"normed": jnp.ones(())}):
        found = computed(TPU, x, weight, interpret, **others)
        assert_close(found, computed(PLAIN, x, weight, interpret, **others))


@pytest.mark.tpu
@pytest.mark.parametrize("gate", GATES)
def test_pairs_are_gated(gate: Gate, interpret: bool) -> None:
    weight, x = stack(256, 384, pair=True), rows_of(128, 256)
    expected = computed(PLAIN, x, weight, interpret, gate=gate, normed=jnp.ones(()))
    found = computed(TPU, x, weight, interpret, gate=gate, normed=jnp.ones(()))
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=1e-6 * np.abs(expected).max())


@pytest.mark.tpu
def test_gates_with_biases_are_left_to_xla(interpret: bool) -> None:
    weight, x = stack(256, 128, pair=True), rows_of(64, 256)
    bias = jnp.asarray(np.random.default_rng(4).normal(size=(2, 128)), jnp.bfloat16)
    with compiling_for(interpret=interpret):
        found, expected = (layer_of(each, weight).gated_linear(x, bias, gate="gelu_tanh") for each in (TPU, PLAIN))
    assert_close(np.asarray(found, np.float32), np.asarray(expected, np.float32))


def test_rows_that_no_tile_of_int8_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="48 rows, 128 summands, 256 columns; rows must be a multiple of 32"):
        products.tpu_quantized_product(rows_of(48, 128), stack(128, 256), LAYER)


@pytest.mark.tpu
def test_a_product_in_many_steps_is_that_of_one(monkeypatch: pytest.MonkeyPatch, interpret: bool) -> None:
    """The rows stay in VMEM in two halves, and are quantised with the first of three blocks of columns."""
    weight, x, residual = stack(128, 384), rows_of(1024, 128), rows_of(1024, 384, seed=1)
    once = computed(TPU, x, weight, interpret, residual=residual)
    for name, limit in (("_WEIGHT_BYTES", 128 * 128), ("_QUANTISED_BYTES", 512 * 128), ("_BLOCK_BYTES", 256 * 256)):
        monkeypatch.setattr(products, name, limit)
    assert products.ProductSizes.of(1024, 128, 384, 1).grid(1024, 384) == (2, 3, 2)
    assert_bits_equal(computed(TPU, x, weight, interpret, residual=residual), once)


@pytest.mark.tpu
def test_a_rows_bits_do_not_depend_on_its_neighbours(interpret: bool) -> None:
    weight, x = stack(256, 128, pair=True), rows_of(128, 256)
    beside = x.at[1:].set(rows_of(127, 256, seed=2) * 1000).at[2].set(jnp.nan)
    first, second = (computed(TPU, each, weight, interpret, normed=jnp.ones(())) for each in (x, beside))
    assert_bits_equal(first[0], second[0])
    assert np.isfinite(np.delete(second, 2, axis=0)).all()


@pytest.mark.tpu
def test_a_row_of_zeros_gives_zeros(interpret: bool) -> None:
    x = rows_of(64, 128).at[5].set(0)
    found = computed(TPU, x, stack(128, 128), interpret, normed=jnp.ones(()))
    assert not found[5].any()
    assert found[4].any()


@pytest.mark.parametrize("sizes", [(96, 128), (128, 96)])
def test_weights_that_fill_no_lanes_are_left_to_xla(sizes: tuple[int, int]) -> None:
    with compiling_for("v6e"):
        assert not isinstance(layer_of(TPU, stack(*sizes)), KernelWeight)


@pytest.mark.parametrize("rows", [64, 288, 320, 768, 1280, 2048, 2304, 4096])
@pytest.mark.parametrize(
    ("depth", "columns", "parts"), [(1024, 4096, 1), (896, 4864, 2), (14_336, 4096, 1), (25_600, 5120, 1)]
)
def test_steps_cover_a_product_within_the_memory_of_a_core(rows: int, depth: int, columns: int, parts: int) -> None:
    sizes = products.ProductSizes.of(rows, depth, columns, parts)
    groups, blocks, steps = sizes.grid(rows, columns)
    assert (groups * steps * sizes.rows, blocks * sizes.columns) == (rows, columns)
    assert sizes.columns % products.LANES == 0
    assert sizes.rows % products.TILE_ROWS == 0
    block = 2 * (2 * depth * sizes.rows + parts * depth * sizes.columns + 2 * 2 * sizes.rows * sizes.columns)
    assert block + sizes.together * (depth + 4 * products.LANES) < products.VMEM_LIMIT
