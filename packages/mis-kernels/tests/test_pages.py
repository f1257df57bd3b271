"""Writing pages: both implementations, races, and caches wider than heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from mis_kernels import Segments, cache_head_dim, lay_out, segment_attention, write_pages
from mis_kernels.pages import IMPLEMENTATIONS
from mis_kernels.segments import NOWHERE
from mis_kernels.target import compiling_for, platform, tpu_chip

PAGE = 64


def arrays(head_dim: int = 64, dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    pages, new = (
        jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((2, 9, PAGE, head_dim), (256, 2, head_dim))
    )
    return pages, new, jnp.array([3, NOWHERE + 5, 8, 0], jnp.int32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("races", [False, True])
def test_copies_by_dma_are_those_of_a_scatter(dtype: str, head_dim: int, races: bool) -> None:
    interpret = pltpu.InterpretParams(detect_races=True) if races else True
    given = arrays(head_dim, dtype)
    expected = IMPLEMENTATIONS["xla"](*given)
    found = IMPLEMENTATIONS["pallas_tpu"](*given, interpret=interpret)
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))
    np.testing.assert_array_equal(np.asarray(expected[:, 8]), np.asarray(given[1][2 * PAGE : 3 * PAGE].swapaxes(0, 1)))
    np.testing.assert_array_equal(np.asarray(expected[:, 1]), np.asarray(given[0][:, 1]))


def step() -> Segments:
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
    )


def test_a_cache_wider_than_the_heads_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.standard_normal((192, n, 64)), jnp.float32) for n in (4, 2, 2))
    found = []
    for width in (64, 128):
        empty = jnp.full((2, 4, PAGE, width), jnp.nan)
        caches = [write_pages(empty, new, step()) for new in (k, v)]
        found += [
            segment_attention(q, k, v, *caches, step(), scale=0.125, implementation=name)
            for name in ("xla", "reference")
        ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5)


def test_a_target_decides_what_is_chosen() -> None:
    assert (platform(), tpu_chip(), cache_head_dim(64)) == (jax.default_backend(), None, 64)
    with compiling_for("v6e"):
        assert (platform(), tpu_chip(), cache_head_dim(64), cache_head_dim(256)) == ("tpu", "v6e", 128, 256)
    assert tpu_chip() is None


def test_unknown_implementations_are_named() -> None:
    with pytest.raises(ValueError, match="'cuda' is unknown"):
        write_pages(arrays()[0], jnp.zeros((192, 2, 64)), step(), implementation="cuda")
