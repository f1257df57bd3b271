"""The glue kernel against plain XLA, in both interpreters."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import NEEDS_NATIVE
from mis_kernels.glue.api import norm_rope, rotary_tables
from mis_kernels.glue.norms import rms_norm
from mis_kernels.glue.pallas_tpu import pallas_tpu_norm_rope
from mis_kernels.glue.reference import norm_rope_reference
from mis_testing.grids import third

REFERENCE = jax.jit(norm_rope_reference, static_argnums=5)
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


@pytest.mark.parametrize("point", third([*itertools.product(LAYOUTS, ["float32", "bfloat16"], [True, False])]))
def test_the_kernel_equals_plain_xla(point: tuple[tuple[int, int, int], str, bool]) -> None:
    layout, dtype, normed = point
    given = arguments(*layout, dtype, normed)
    assert_same(pallas_tpu_norm_rope(*given, interpret=True), REFERENCE(*given), dtype)


@NEEDS_NATIVE
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_native_implementation_equals_plain_xla(layout: tuple[int, int, int], normed: bool) -> None:
    given = arguments(*layout, "bfloat16", normed, tokens=70)
    assert_same(norm_rope(*given, implementation="native"), REFERENCE(*given), "bfloat16")
    x, weight = given[0].reshape(-1, layout[2]), jnp.linspace(-2, 2, layout[2], dtype=jnp.bfloat16)
    x32 = np.asarray(x, np.float32)
    expected = x32 / np.sqrt((x32**2).mean(1, keepdims=True) + 1e-6) * np.asarray(weight, np.float32)
    np.testing.assert_allclose(np.asarray(rms_norm(x, weight, 1e-6), np.float32), expected, atol=2e-2, rtol=1e-2)


def test_native_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(ValueError, match="native is not available here for float32 heads of 128"):
        norm_rope(*arguments(1, 1, 128, "float32", True), implementation="native")


def test_the_kernel_has_no_races_and_reads_nothing_it_was_not_given() -> None:
    given = arguments(2, 2, 128, "float32", True, tokens=512)
    strict = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    assert_same(pallas_tpu_norm_rope(*given, interpret=strict), norm_rope_reference(*given), "float32")


def test_rotation_is_that_of_complex_numbers() -> None:
    """Pairs (i, i + half) turn by their angle: multiplication by exp(i angle)."""
    dim, tokens = 32, 64
    qkv, cos, sin, *_ = arguments(1, 1, dim, "float32", False)
    q, _, v = norm_rope(qkv, cos, sin, None, None, 0.0)
    inverse = 1e4 ** -np.linspace(0, 1, dim // 2, endpoint=False)
    turn = np.exp(1j * np.arange(tokens)[:, None] * 37 * inverse)
    x = np.asarray(qkv[:, 0, 0])
    turned = (x[:, : dim // 2] + 1j * x[:, dim // 2 :]) * turn
    np.testing.assert_allclose(np.asarray(q[:, 0]), np.concatenate([turned.real, turned.imag], 1), atol=1e-3)
    np.testing.assert_array_equal(v[:, 0], qkv[:, 0, 2])


@pytest.mark.parametrize("dim", [32, 128, 1024])
def test_a_norms_bits_do_not_depend_on_the_number_of_rows(dim: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2048, dim)), jnp.float32)
    run = jax.jit(lambda x: rms_norm(x, jnp.ones(dim), 1e-6))
    for rows in (64, 128, 512):
        np.testing.assert_array_equal(run(x)[:rows], run(x[:rows]))


def test_bad_arguments_are_named() -> None:
    qkv, cos, sin, weight, *_ = arguments(1, 1, 32, "float32", True)
    with pytest.raises(ValueError, match="both or neither"):
        norm_rope(qkv, cos, sin, weight, None, 1e-6)
    with pytest.raises(ValueError, match="'cuda' is unknown"):
        norm_rope(qkv, cos, sin, None, None, 1e-6, implementation="cuda")
