"""Norms and RoPE of every backend against plain XLA."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import EMULATED, NATIVE_TYPES, NEEDS_NATIVE, SMALL, on_host
from mis_kernels import norm_rope, rotary_tables
from mis_kernels.backends import ANY_HEADS, choose
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.norm_rope import grid_block, tpu_norm_rope
from mis_kernels.backends.xla.rope import norm_rope as norm_rope_reference
from mis_kernels.heads import HeadShape, device_head_shapes
from mis_kernels.target import compiling_for
from mis_testing.bits import assert_bits_equal
from mis_testing.grids import part
from mis_testing.tolerances import ROUNDED_ONCE

REFERENCE = jax.jit(norm_rope_reference, static_argnums=5)
TPU = TpuBackend(ANY_HEADS, "float32", SMALL)
LAYOUTS = [(8, 2, 128), (2, 7, 64), (1, 8, 64), (4, 1, 128), (2, 3, 96), (1, 4, 256)]


def arguments(kv_heads: int, group: int, dim: int, dtype: str, normed: bool, tokens: int = 64) -> tuple:
    rng = np.random.default_rng(0)
    qkv = jnp.asarray(rng.standard_normal((tokens, kv_heads, group + 2, dim)), dtype)
    inverse = 1e4 ** -jnp.linspace(0, 1, dim // 2, endpoint=False)
    tables = rotary_tables(jnp.arange(tokens, dtype=jnp.int32) * 37, inverse)
    norms = [jnp.asarray(rng.standard_normal(dim), dtype) if normed else None for _ in range(2)]
    return qkv, *tables, *norms, 1e-6


def assert_same(found: tuple, expected: tuple, dtype: str) -> None:
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        as_floats = (np.asarray(x, np.float32) for x in (mine, theirs))
        np.testing.assert_allclose(*as_floats, atol=tolerance, rtol=tolerance)


def by_kernel(given: tuple, interpret: bool | pltpu.InterpretParams) -> tuple:
    return _by_kernel(*given, interpret)


@partial(jax.jit, static_argnums=(5, 6), compiler_options=EMULATED)
def _by_kernel(
    qkv: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    q_norm: jax.Array | None,
    k_norm: jax.Array | None,
    epsilon: float,
    interpret: bool | pltpu.InterpretParams,
) -> tuple:
    with compiling_for(interpret=interpret):
        return tpu_norm_rope(qkv, cos, sin, q_norm, k_norm, epsilon)


def by_reference(given: tuple) -> tuple:
    with on_host():
        return REFERENCE(*(x if x is None or isinstance(x, float) else jnp.asarray(np.asarray(x)) for x in given))


@pytest.mark.tpu
@pytest.mark.parametrize(
    "point", part([*itertools.product(LAYOUTS, ["float32", "bfloat16"], [True, False])], one_in=12)
)
def test_the_kernel_equals_plain_xla(point: tuple[tuple[int, int, int], str, bool], interpret: bool) -> None:
    layout, dtype, normed = point
    given = arguments(*layout, dtype, normed)
    assert_same(by_kernel(given, interpret), by_reference(given), dtype)


@pytest.mark.parametrize("heads", device_head_shapes(), ids=str)
def test_blocks_of_every_head_fit_the_smallest_chip(heads: HeadShape) -> None:
    """With 8 x 256 columns a grid step of 1,024 tokens took 20 MiB; v5e has 16."""
    block, together = grid_block(2048, heads, item_bytes=2)
    columns = together * (heads.group + 2) * heads.head_dim
    assert 2 * block * (2 * 2 * columns + 2 * 4 * heads.head_dim) < 16 * 2**20
    assert block >= 512


@pytest.mark.tpu
def test_a_step_of_several_blocks_of_tokens(interpret: bool) -> None:
    given = arguments(8, 2, 128, "bfloat16", True, tokens=768)
    assert_same(by_kernel(given, interpret), by_reference(given), "bfloat16")


@pytest.mark.tpu
def test_values_pass_through_the_kernel_with_their_bits(interpret: bool) -> None:
    given = arguments(8, 2, 128, "bfloat16", True)
    _, _, v = by_kernel(given, interpret)
    assert_bits_equal(v, given[0][:, :, -1])


@pytest.mark.tpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_turn_by_no_angle_changes_no_value(dtype: str, interpret: bool) -> None:
    """As in layers without RoPE."""
    qkv, cos, sin, *_ = arguments(2, 7, 64, dtype, False)
    plain = qkv, jnp.ones_like(cos), jnp.zeros_like(sin), None, None, 1e-6
    expected = qkv[:, :, :7].reshape(64, 14, 64), qkv[:, :, 7], qkv[:, :, 8]
    for found in (by_kernel(plain, interpret), by_reference(plain)):
        for mine, given in zip(found, expected, strict=True):
            assert_bits_equal(mine, given)


@pytest.mark.tpu
def test_nan_in_rows_of_padding_stays_there(interpret: bool) -> None:
    given = arguments(8, 2, 128, "bfloat16", True)
    spoilt = given[0].at[40:].set(jnp.nan), *given[1:]
    for clean, beside in zip(by_kernel(given, interpret), by_kernel(spoilt, interpret), strict=True):
        assert_bits_equal(np.asarray(beside)[:40], np.asarray(clean)[:40])


@pytest.mark.gpu
def test_plain_xla_normalises_each_row() -> None:
    """Against the definition of the root mean square norm, in float64."""
    qkv, cos, sin, weight, _, epsilon = arguments(2, 3, 96, "bfloat16", True)
    q, *_ = REFERENCE(qkv, jnp.ones_like(cos), jnp.zeros_like(sin), weight, weight, epsilon)
    x = np.asarray(qkv[:, :, :3], np.float64).reshape(64, 6, 96)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * np.asarray(weight, np.float64)
    np.testing.assert_allclose(np.asarray(q, np.float64), expected, atol=ROUNDED_ONCE, rtol=ROUNDED_ONCE)


@pytest.mark.parametrize("dtype", [pytest.param(name, marks=needed) for name, needed in NATIVE_TYPES.items()])
@pytest.mark.parametrize("point", part([*itertools.product(LAYOUTS, [True, False])], one_in=2))
def test_native_equals_plain_xla(point: tuple[tuple[int, int, int], bool], dtype: str) -> None:
    layout, normed = point
    given = arguments(*layout, dtype, normed, tokens=70)
    assert_same(norm_rope(*given, backend="native"), REFERENCE(*given), dtype)
    x, weight = given[0].reshape(-1, layout[2]), jnp.linspace(-2, 2, layout[2], dtype=dtype)
    x32 = np.asarray(x, np.float32)
    expected = x32 / np.sqrt((x32**2).mean(1, keepdims=True) + 1e-6) * np.asarray(weight, np.float32)
    found = np.asarray(choose(ANY_HEADS, dtype, "native").rms_norm(x, weight, 1e-6), np.float32)
    tolerance = ROUNDED_ONCE if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)


@NEEDS_NATIVE
def test_native_norms_multiply_with_weights_in_float32() -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((64, 256)), jnp.bfloat16)
    weight = jnp.asarray(1 + random.uniform(-0.01, 0.01, 256), jnp.float32)  # bfloat16 has three of these values
    wide = np.asarray(x, np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * np.asarray(weight, np.float64)
    native = choose(ANY_HEADS, "bfloat16", "native")
    found = np.asarray(native.rms_norm(x, weight, 1e-6), np.float64)
    rounded = np.asarray(native.rms_norm(x, weight.astype(jnp.bfloat16), 1e-6), np.float64)
    assert np.abs(found - exact).mean() < 0.8 * np.abs(rounded - exact).mean()
    q, k, _ = norm_rope(*(given := arguments(1, 1, 256, "bfloat16", False))[:3], weight, weight, 1e-6, backend="native")
    expected = REFERENCE(*given[:3], weight, weight, 1e-6)
    assert (np.asarray(q) == np.asarray(expected[0])).mean() > 0.99
    assert (np.asarray(k) == np.asarray(expected[1])).mean() > 0.99


def test_the_kernel_has_no_races_and_reads_only_its_arguments() -> None:
    given = arguments(2, 2, 128, "float32", True, tokens=512)
    strict = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    assert_same(by_kernel(given, strict), norm_rope_reference(*given), "float32")


@pytest.mark.parametrize(
    "backend",
    [pytest.param("xla", marks=pytest.mark.gpu), pytest.param("tpu", marks=pytest.mark.tpu)],
)
def test_rotation_is_that_of_complex_numbers(backend: str, interpret: bool) -> None:
    """Pairs (i, i + half) turn by their angle: multiplication by exp(i angle)."""
    dim, tokens = 128, 64
    qkv, cos, sin, *_ = arguments(1, 1, dim, "float32", False)
    with compiling_for(interpret=interpret):
        q, _, v = norm_rope(qkv, cos, sin, None, None, 0.0, backend=TPU if backend == "tpu" else backend)
    inverse = 1e4 ** -np.linspace(0, 1, dim // 2, endpoint=False)
    turn = np.exp(1j * np.arange(tokens)[:, None] * 37 * inverse)
    x = np.asarray(qkv[:, 0, 0])
    turned = (x[:, : dim // 2] + 1j * x[:, dim // 2 :]) * turn
    np.testing.assert_allclose(np.asarray(q[:, 0]), np.concatenate([turned.real, turned.imag], 1), atol=1e-3)
    np.testing.assert_array_equal(v[:, 0], qkv[:, 0, 2])


@pytest.mark.parametrize("dim", [32, 128, 1024])
def test_a_norms_bits_do_not_depend_on_the_number_of_rows(dim: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2048, dim)), jnp.float32)
    run = jax.jit(lambda x: choose(ANY_HEADS, "float32").rms_norm(x, jnp.ones(dim), 1e-6))
    for rows in (64, 128, 512):
        np.testing.assert_array_equal(run(x)[:rows], run(x[:rows]))


def test_bad_arguments_are_named() -> None:
    qkv, cos, sin, weight, *_ = arguments(1, 1, 32, "float32", True)
    with pytest.raises(ValueError, match="both or neither"):
        norm_rope(qkv, cos, sin, weight, None, 1e-6)
    with pytest.raises(ValueError, match="'cuda' is unknown"):
        norm_rope(qkv, cos, sin, None, None, 1e-6, backend="cuda")
