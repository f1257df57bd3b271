"""Queries, keys and values from quantised weights in one kernel, against the product and the norms of plain XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import EMULATED, SMALL
from mis_kernels import rotary_tables
from mis_kernels.backends import Backend
from mis_kernels.backends.tpu import products, projection
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.heads import HEAD_SHAPES, HeadShape
from mis_kernels.operations import project
from mis_kernels.quantized import QuantizedWeight, block_of, quantize
from mis_kernels.target import compiling_for
from mis_kernels.weights import FoldedNorm, HeadRotations
from mis_testing.bits import assert_bits_equal

LAYERS, LAYER, EPSILON = 2, jnp.int32(1), 1e-6
DEPTH = 256


def stack(heads: HeadShape, depth: int = DEPTH) -> QuantizedWeight:
    columns = (heads.group + 2) * heads.kv_heads * heads.head_dim
    weight = np.random.default_rng(columns).normal(size=(LAYERS, depth, columns)).astype(np.float32)
    return jax.tree.map(jnp.asarray, quantize(weight, block_of(depth)))


def rows_of(count: int, dtype: str = "bfloat16", seed: int = 0) -> jax.Array:
    random = np.random.default_rng((count, seed))
    return jnp.asarray(random.normal(size=(count, DEPTH)) * np.exp(random.normal(size=(1, DEPTH))), dtype)


def turns_of(tokens: int, heads: HeadShape, dtype: str = "bfloat16", *, normed: bool = True) -> HeadRotations:
    random = np.random.default_rng(tokens)
    inverse = 1e4 ** -jnp.linspace(0, 1, heads.head_dim // 2, endpoint=False)
    norms = [jnp.asarray(random.normal(size=heads.head_dim), dtype) if normed else None for _ in range(2)]
    return HeadRotations(*rotary_tables(jnp.arange(tokens, dtype=jnp.int32) * 37, inverse), *norms, EPSILON)


def bias_of(heads: HeadShape) -> jax.Array:
    shape = heads.kv_heads, heads.group + 2, heads.head_dim
    return jnp.asarray(np.random.default_rng(3).normal(size=shape) * 20, jnp.bfloat16)


def computed(
    backend: Backend,
    x: jax.Array,
    weight: QuantizedWeight,
    turns: HeadRotations,
    bias: jax.Array | None = None,
    *,
    folded: bool = True,
    interpret: bool,
) -> list[np.ndarray]:
    def run(x: jax.Array, weight: QuantizedWeight, arrays: tuple, bias: jax.Array | None) -> tuple:
        norm = FoldedNorm((x.astype(jnp.float32) ** 2).sum(1, keepdims=True), EPSILON) if folded else None
        packed = backend.pack_quantized(weight, *weight.values.shape[-2:])
        return project(x, packed.at_layer(LAYER), HeadRotations(*arrays, EPSILON), bias, norm, backend=backend)

    with compiling_for(interpret=interpret):
        made = jax.jit(run, compiler_options=EMULATED)(x, weight, turns[:-1], bias)
        return [np.asarray(each, np.float32) for each in made]


def backends(heads: HeadShape, dtype: str = "bfloat16") -> tuple[Backend, Backend]:
    return TpuBackend(heads, dtype, SMALL), XlaBackend(heads, dtype)


def assert_close(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 2**-6) -> None:
    """Fail unless they differ by a few roundings of bfloat16: plain XLA rounds the product, the norm and the result."""
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())
        assert np.abs(mine - theirs).mean() < tolerance / 16 * np.abs(theirs).max()


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("heads", "rows", "normed", "biased"),
    [
        pytest.param(HeadShape(4, 2, 128), 128, True, False, marks=pytest.mark.full),
        (HeadShape(3, 1, 128), 64, False, True),
        (HeadShape(3, 3, 128), 96, True, False),
        pytest.param(HeadShape(2, 1, 256), 64, True, True, marks=pytest.mark.full),
    ],
)
def test_it_is_the_product_the_norm_and_the_rotation(
    heads: HeadShape, rows: int, normed: bool, biased: bool, interpret: bool
) -> None:
    weight, x, turns = stack(heads), rows_of(rows), turns_of(rows, heads, normed=normed)
    bias = bias_of(heads) if biased else None
    found, expected = (computed(each, x, weight, turns, bias, interpret=interpret) for each in backends(heads))
    assert [each.shape for each in found] == [(rows, n, heads.head_dim) for n in (heads.heads, *[heads.kv_heads] * 2)]
    assert_close(found, expected)
    swapped = turns._replace(sin=-turns.sin)
    with pytest.raises(AssertionError):
        assert_close(computed(backends(heads)[0], x, weight, swapped, bias, interpret=interpret), expected)


@pytest.mark.tpu
def test_nothing_but_the_result_is_rounded(interpret: bool) -> None:
    heads = HeadShape(4, 2, 128)
    weight, x, turns = stack(heads), rows_of(64, "float32"), turns_of(64, heads, "float32")
    found, expected = (
        computed(each, x, weight, turns, folded=False, interpret=interpret) for each in backends(heads, "float32")
    )
    assert_close(found, expected, 1e-5)


@pytest.mark.tpu
def test_many_grid_steps_compute_what_one_does(monkeypatch: pytest.MonkeyPatch, interpret: bool) -> None:
    """Rows in two halves that stay in VMEM, two steps each; KV heads one by one, so that strips are odd in number."""
    heads = HeadShape(2, 2, 128)
    weight, x, turns = stack(heads), rows_of(1024), turns_of(1024, heads)
    once = computed(backends(heads)[0], x, weight, turns, interpret=interpret)
    for name, limit in (("_WEIGHT_BYTES", 1), ("_QUANTISED_BYTES", 512 * DEPTH), ("_BLOCK_BYTES", 256 * 2 * DEPTH)):
        monkeypatch.setattr(products, name, limit)
    sizes = projection.sizes_of(1024, DEPTH, heads)
    assert sizes.grid(1024, 6 * 128) == (2, 2, 2)
    assert projection.strips_of(sizes, heads) == 1
    for several, one in zip(computed(backends(heads)[0], x, weight, turns, interpret=interpret), once, strict=True):
        assert_bits_equal(several, one)


@pytest.mark.tpu
def test_a_rows_bits_do_not_depend_on_its_neighbours(interpret: bool) -> None:
    heads = HeadShape(4, 2, 128)
    weight, x, turns = stack(heads), rows_of(64), turns_of(64, heads)
    beside = x.at[1:].set(rows_of(63, seed=2) * 1000).at[2].set(jnp.nan).at[3].set(0)
    first, second = (computed(backends(heads)[0], each, weight, turns, interpret=interpret) for each in (x, beside))
    for alone, among in zip(first, second, strict=True):
        assert_bits_equal(alone[0], among[0])
        assert np.isnan(among[2]).all()
        assert not among[3].any()
        assert np.isfinite(np.delete(among, 2, axis=0)).all()


def test_heads_that_fill_no_lanes_are_projected_apart() -> None:
    heads = HeadShape(4, 2, 64)
    weight, x, turns = stack(heads), rows_of(64), turns_of(64, heads)
    found, expected = (computed(each, x, weight, turns, interpret=True) for each in backends(heads))
    assert_close(found, expected)


@pytest.mark.parametrize("rows", [64, 320, 1280, 4096])
@pytest.mark.parametrize(("model", "depth"), [("qwen3-0.6b", 1024), ("qwen3-8b", 4096), ("qwen2.5-7b", 3584)])
def test_steps_cover_a_projection_within_the_memory_of_a_core(rows: int, model: str, depth: int) -> None:
    heads = HEAD_SHAPES[model]
    sizes, width = projection.sizes_of(rows, depth, heads), (heads.group + 2) * heads.head_dim
    groups, blocks, steps = sizes.grid(rows, heads.kv_heads * width)
    assert (groups * steps * sizes.rows, blocks * sizes.columns) == (rows, heads.kv_heads * width)
    assert sizes.columns % width == 0
    assert sizes.rows % products.TILE_ROWS == 0
    block = 2 * (2 * depth * sizes.rows + depth * sizes.columns + 2 * sizes.rows * (sizes.columns + 4 * width))
    buffers = 4 * (4 * 256 * width + 4 * sizes.rows * heads.head_dim)
    assert block + buffers + sizes.together * (depth + 4 * products.LANES) < products.VMEM_LIMIT
    strips = projection.strips_of(sizes, heads)
    assert strips == 1 or strips // 2 % (projection.strips_together(strips) // 2) == 0


@pytest.mark.parametrize(("chip", "fused"), [("v6e", True), ("v7x", False)])
def test_the_backend_projects_in_one_kernel_where_that_is_faster(chip: str, fused: bool) -> None:
    heads = HEAD_SHAPES["qwen3-0.6b"]
    with compiling_for(chip):
        backend = TpuBackend.create(heads, "bfloat16")
        weight = jax.eval_shape(lambda: stack(heads))
        weight = backend.pack_quantized(weight, *weight.values.shape[-2:])
        turns = jax.eval_shape(lambda: turns_of(64, heads)[:-1])
        text = str(
            jax.make_jaxpr(
                lambda x, weight, turns: project(
                    x, weight.at_layer(LAYER), HeadRotations(*turns, EPSILON), backend=backend
                )
            )(rows_of(64), weight, turns)
        )
    assert ("quantized_projection" in text) == fused
    assert ("name=norm_rope" in text) == (not fused)
