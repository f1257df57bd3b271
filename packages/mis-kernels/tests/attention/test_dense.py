"""Attention with dense masks equals the reference, and its arrays keep within what is counted for them."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import CASES, PAGE, Case, Segment, in_float32
from mis_kernels import segment_attention
from mis_kernels.backends import LaidOut
from mis_kernels.backends.reference import dense
from mis_kernels.backends.reference.dense import DENSE_BYTES, DenseSize
from mis_kernels.heads import HEAD_SHAPES, HeadShape
from mis_kernels.masks import intervals_of_segments
from mis_testing.tolerances import ATTENTION

PER_COMMIT = (
    "many contexts in one block", "items see parts of a context", "head_dim 96, multi-query",
    "a cap and a window over many contexts",
)  # fmt: skip
POINTS = [pytest.param(name, marks=() if name in PER_COMMIT else pytest.mark.full) for name in CASES]


@pytest.fixture(params=["as many rows as fit", "a few rows at a time"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "a few rows at a time":
        monkeypatch.setattr(dense, "DENSE_BYTES", 0)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", POINTS)
def test_equals_the_reference(name: str) -> None:
    arrays = CASES[name].arrays(jnp.float32)
    found = jax.jit(segment_attention, static_argnames=("scale", "cap", "backend"))(**arrays | {"backend": "dense"})
    np.testing.assert_allclose(
        np.asarray(found), in_float32(arrays), atol=ATTENTION["float32"], rtol=ATTENTION["float32"]
    )


def test_a_step_of_padding_is_zero() -> None:
    case = Case([Segment(5)], contexts=(30,), tokens=64)
    arrays = case.arrays(jnp.float32)
    nothing = dataclasses.replace(
        arrays["segments"], context_len=np.zeros(64, np.int32), segment_start=np.arange(1, 65, dtype=np.int32)
    )
    found = segment_attention(**arrays | {"segments": nothing, "backend": "dense"})
    assert not np.asarray(found).any()


def compiled_bytes(backend: str, tokens: int, pages: int, heads: HeadShape, dtype: str) -> int:
    """Return the temporary memory of a step's attention with eight contexts of so many pages."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, cache: jax.Array, *described: jax.Array) -> jax.Array:
        segments = LaidOut(*described, tiles=None)
        return segment_attention(q, k, v, cache, cache, segments, scale=0.125, backend=backend)

    described = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in (*[(tokens,)] * 3, (8, pages), (tokens // PAGE,))]
    new = [jax.ShapeDtypeStruct((tokens, n, heads.head_dim), dtype) for n in (heads.heads, *[heads.kv_heads] * 2)]
    cache = jax.ShapeDtypeStruct((heads.kv_heads, 515, PAGE, heads.head_dim), dtype)
    memory = jax.jit(attend).lower(*new, cache, *described).compile().memory_analysis()
    return memory.temp_size_in_bytes


QWEN3 = HEAD_SHAPES["qwen3-0.6b"]
SIZES = [
    pytest.param(2048, 511, HeadShape(2, 1, 64), "float32", id="two heads at a CPU's defaults"),
    pytest.param(2048, 511, QWEN3, "float32", id="qwen3-0.6b at a CPU's defaults"),
    pytest.param(4096, 640, QWEN3, "float32", id="qwen3-0.6b in steps of 4,096"),
    pytest.param(2048, 32, QWEN3, "float32", id="qwen3-0.6b, a short context"),
    pytest.param(64, 32, QWEN3, "float32", id="qwen3-0.6b, a small step"),
    pytest.param(768, 640, HeadShape(14, 2, 64), "float32", id="a group of seven"),
]


@pytest.mark.parametrize(("tokens", "pages", "heads", "dtype"), SIZES)
def test_temporary_memory_keeps_within_what_is_counted(tokens: int, pages: int, heads: HeadShape, dtype: str) -> None:
    size = DenseSize(tokens, pages * PAGE, heads.group, heads.head_dim)
    assert size.bytes <= DENSE_BYTES
    transposed = tokens * (2 * heads.heads + 2 * heads.kv_heads) * heads.head_dim * 4  # q, k, v and output of all heads
    assert compiled_bytes("dense", tokens, pages, heads, dtype) <= size.bytes + transposed


def test_the_reference_takes_more_than_a_device_has() -> None:
    assert compiled_bytes("reference", 2048, 511, QWEN3, "float32") > 60 * 2**30


def test_sizes_beyond_the_smallest_blocks_exceed_the_limit() -> None:
    longest = DenseSize(4096, 1 << 20, 8, 128)
    assert longest.rows == dense.FEWEST_ROWS
    assert longest.bytes > DENSE_BYTES


def test_intervals_of_a_step_are_the_same_on_a_device() -> None:
    segments, _ = Case([Segment(70, paged=True), Segment(9, context=1)], contexts=(128, 64)).layout()
    on_device = jax.jit(partial(intervals_of_segments, page_size=PAGE))(jax.tree.map(jnp.asarray, segments))
    for found, expected in zip(*map(jax.tree.leaves, (on_device, intervals_of_segments(segments, PAGE))), strict=True):
        np.testing.assert_array_equal(found, expected)
