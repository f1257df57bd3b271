"""Writing pages: both ways, races, and caches wider than heads."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import EMULATED, on_host
from mis_kernels import lay_out, segment_attention, write_pages
from mis_kernels.backends import ANY_HEADS, Backend, LaidOut, choose
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_kernels.backends.xla.pages import write_pages as scatter
from mis_kernels.heads import HeadShape
from mis_kernels.segments import NOWHERE
from mis_kernels.target import compiling_for, platform, tpu_chip
from mis_testing.tolerances import ATTENTION

PAGE = 64
WIDTHS = (128, 256)
TPU = TpuBackend(ANY_HEADS, "bfloat16", TpuBlocks(128, 128, 128, 64))


def arrays(head_dim: int = 64, dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    pages, new = (
        jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((2, 9, PAGE, head_dim), (256, 2, head_dim))
    )
    return pages, new, jnp.array([3, NOWHERE + 5, 8, 0], jnp.int32)


Interpret = bool | pltpu.InterpretParams


@partial(jax.jit, static_argnames="interpret", donate_argnums=0, compiler_options=EMULATED)
def write(pages: jax.Array, new: jax.Array, segments: LaidOut, interpret: Interpret) -> jax.Array:
    with compiling_for(interpret=interpret, bounds_checks=True):
        return write_pages(pages, new, segments, TPU)


def by_dma(pages: jax.Array, new: jax.Array, writes: jax.Array, interpret: Interpret) -> np.ndarray:
    segments = dataclasses.replace(step(TPU), page_writes=writes)
    return np.asarray(write(jnp.array(pages), new, segments, interpret), np.float32)  # a copy is donated


def assert_is_the_scatter(given: tuple[jax.Array, jax.Array, jax.Array], interpret: Interpret) -> None:
    with on_host():
        expected = np.asarray(scatter(*map(jnp.asarray, map(np.asarray, given))), np.float32)
    np.testing.assert_array_equal(by_dma(*given, interpret), expected)


@pytest.mark.tpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_copies_by_dma_are_those_of_a_scatter(dtype: str, head_dim: int, interpret: bool) -> None:
    """In whole rows of 128 lanes, as `cache_head_dim` makes them: the TPU's compiler refuses to copy less."""
    assert_is_the_scatter(arrays(head_dim, dtype), interpret)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_copies_by_dma_do_not_race(dtype: str) -> None:
    assert_is_the_scatter(arrays(128, dtype), pltpu.InterpretParams(detect_races=True))


@pytest.mark.gpu
def test_a_scatter_writes_runs_to_their_pages_and_nothing_else() -> None:
    pages, new, writes = arrays()
    found = np.asarray(scatter(pages, new, writes))
    for run, page in enumerate(np.asarray(writes)):
        if page < NOWHERE:
            np.testing.assert_array_equal(found[:, page], np.asarray(new[run * PAGE : (run + 1) * PAGE].swapaxes(0, 1)))
    untouched = [1, 2, 4, 5, 6, 7]
    np.testing.assert_array_equal(found[:, untouched], np.asarray(pages[:, untouched]))


@pytest.mark.tpu
def test_dma_leaves_other_pages_as_they_were(interpret: bool) -> None:
    pages, new, writes = arrays(128, "bfloat16")
    pages = pages.at[:, 1].set(jnp.nan)
    found = by_dma(pages, new, writes, interpret)
    untouched = [1, 2, 4, 5, 6, 7]
    np.testing.assert_array_equal(found[:, untouched], np.asarray(pages[:, untouched], np.float32))


@pytest.mark.tpu
def test_a_step_without_paged_segments_writes_nothing(interpret: bool) -> None:
    pages, new, writes = arrays(128, "bfloat16")
    found = by_dma(pages, new, jnp.full_like(writes, NOWHERE), interpret)
    np.testing.assert_array_equal(found, np.asarray(pages, np.float32))


@pytest.mark.full
@pytest.mark.tpu
def test_hundreds_of_copies_may_be_under_way_at_once(interpret: bool) -> None:
    """Eight KV heads and 4,096 new tokens: 512 copies under way on one semaphore."""
    rng = np.random.default_rng(0)
    new = jnp.asarray(rng.standard_normal((4096, 8, 128)), jnp.bfloat16)
    pages = jnp.full((8, 80, PAGE, 128), jnp.nan, jnp.bfloat16)
    assert_is_the_scatter((pages, new, jnp.asarray(rng.permutation(80)[:64], jnp.int32)), interpret)


def step(backend: Backend | str = "xla") -> LaidOut:
    """A query of 100 tokens in pages 2 and 0, then an item behind its first 64 tokens."""
    return lay_out(
        starts=np.array([0, 128], np.int32),
        lens=np.array([100, 20], np.int32),
        context_ids=np.zeros(2, np.int32),
        context_lens=np.array([0, 64], np.int32),
        paged=np.array([True, False]),
        page_table=np.array([[2, 0, 1]], np.int32),
        page_size=PAGE,
        tokens=192,
        backend=choose(ANY_HEADS, "bfloat16", backend) if isinstance(backend, str) else backend,
    )


@pytest.mark.tpu
def test_dma_fills_a_cache_wider_than_the_heads_with_zeros(interpret: bool) -> None:
    _, new, writes = arrays(64, "bfloat16")
    found = by_dma(jnp.full((2, 9, PAGE, 128), jnp.nan, jnp.bfloat16), new, writes, interpret)
    np.testing.assert_array_equal(found[:, 8, :, :64], np.asarray(new[2 * PAGE : 3 * PAGE].swapaxes(0, 1), np.float32))
    assert not found[:, [3, 8, 0], :, 64:].any()


def test_a_cache_wider_than_the_heads_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.standard_normal((192, n, 64)), jnp.float32) for n in (4, 2, 2))
    found = []
    for width in (64, 128):
        empty = jnp.full((2, 4, PAGE, width), jnp.nan)
        caches = [write_pages(empty, new, step(), choose(ANY_HEADS, "float32", "xla")) for new in (k, v)]
        found += [
            segment_attention(q, k, v, *caches, step(), scale=0.125, backend=name) for name in ("xla", "reference")
        ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=ATTENTION["float32"])


def test_a_target_decides_what_is_chosen() -> None:
    def width(head_dim: int) -> int:
        return choose(HeadShape(1, 1, head_dim), "bfloat16").cache_head_dim

    assert (platform(), tpu_chip(), width(64)) == (jax.default_backend(), None, 64)
    with compiling_for("v6e"):
        assert (platform(), tpu_chip(), width(64), width(256)) == ("tpu", "v6e", 128, 256)
    assert tpu_chip() is None


def test_unknown_backends_are_named() -> None:
    names = "tpu, gpu, native, native_products, xla, dense, reference"
    with pytest.raises(ValueError, match=f"'cuda' is unknown; choose from {names}"):
        step("cuda")
