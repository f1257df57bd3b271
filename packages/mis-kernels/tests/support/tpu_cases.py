"""Steps for tests of the TPU kernel: head layouts, page sizes, shuffled pages, NaN wherever nobody looks."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import EMULATED, SMALL, UNOPTIMISED, on_host
from mis_kernels import lay_out, reference_attention, segment_attention
from mis_kernels.backends import ANY_HEADS, LaidOut
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_kernels.target import compiling_for

# Compiled as a whole: outside of `jit` every operation of every new shape is compiled by itself.
_reference = jax.jit(reference_attention, static_argnames=("scale", "cap"), compiler_options=UNOPTIMISED)

Interpret = bool | pltpu.InterpretParams


@dataclasses.dataclass(frozen=True)
class Case:
    """A step: `(context, cached tokens, new tokens, paged)` of each segment, and the shapes around it."""

    name: str
    segments: tuple[tuple[int, int, int, bool], ...]
    tokens: int = 256
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 128
    page_size: int = 64
    dtype: str = "float32"
    blocks: TpuBlocks = SMALL
    shuffle: bool = False
    contexts: int = 1  # at least
    pages_per_context: int = 1  # at least
    tile_capacity: int | None = None

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def items(context: int, cached: int, *lens: int) -> tuple[tuple[int, int, int, bool], ...]:
    return tuple((context, cached, n, False) for n in lens)


def lay_out_case(case: Case) -> tuple[LaidOut, int]:
    """Lay a case out; paged segments start on page edges, a hole of 3 tokens follows other segments now and then."""
    contexts = max((s[0] + 1 for s in case.segments), default=1)
    contexts = max(contexts, case.contexts)
    longest = max((s[1] + (s[2] if s[3] else 0) for s in case.segments), default=0)
    pages_per_context = max(-(-longest // case.page_size), case.pages_per_context)
    pages = np.arange(contexts * pages_per_context, dtype=np.int32)
    if case.shuffle:
        pages = np.random.default_rng(0).permutation(pages).astype(np.int32)
    starts, row = [], 0
    for _, _, n, paged in case.segments:
        row = -(-row // case.page_size) * case.page_size if paged else row
        starts.append(row)
        row += n
    columns = np.array(case.segments, np.int32).reshape(-1, 4).T
    segments = lay_out(
        starts=np.array(starts, np.int32),
        lens=columns[2],
        context_ids=columns[0],
        context_lens=columns[1],
        paged=columns[3].astype(bool),
        page_table=pages.reshape(contexts, -1) + 1,
        page_size=case.page_size,
        tokens=case.tokens,
        backend=TpuBackend(ANY_HEADS, case.dtype, case.blocks),
        tile_capacity=None if case.tile_capacity is None else (case.tile_capacity,),
    )
    return segments, contexts * pages_per_context + 2


def arrays(case: Case, pages: int, segments: LaidOut, seed: int = 0) -> tuple[jax.Array, ...]:
    """Random inputs; memory and rows that nobody sees hold NaN."""
    random = np.random.default_rng(seed)
    shape = (case.tokens, case.kv_heads, case.head_dim)
    q = random.normal(size=(case.tokens, case.kv_heads * case.group, case.head_dim)) * 3
    k, v = random.normal(size=shape), random.normal(size=shape)
    cache = (case.kv_heads, pages, case.page_size, case.head_dim)
    k_pages, v_pages = np.full(cache, np.nan), np.full(cache, np.nan)
    reach = np.zeros(len(segments.page_table), np.int64)
    np.maximum.at(reach, segments.context_id, segments.context_len)
    for context, length in enumerate(reach):
        position = np.arange(length)
        at = segments.page_table[context, position // case.page_size], position % case.page_size
        for target in (k_pages, v_pages):
            target[:, at[0], at[1]] = random.normal(size=(case.kv_heads, length, case.head_dim))
    for new in (q, k, v):
        new[~live(segments)] = np.nan
    return tuple(jnp.asarray(x.astype(jnp.dtype(case.dtype))) for x in (q, k, v, k_pages, v_pages))


def live(segments: LaidOut) -> np.ndarray:
    """Rows that see anything."""
    return (segments.context_len > 0) | (segments.segment_start <= np.arange(segments.num_tokens))


def attend(
    inputs: Sequence[jax.Array], segments: LaidOut, scale: float, interpret: Interpret, cap: float | None = None
) -> np.ndarray:
    """What the kernel makes of a step, its addresses checked."""
    return np.asarray(_attend(tuple(inputs), segments, scale, interpret, cap))


def backend_of(segments: LaidOut) -> TpuBackend:
    """The backend that segments were laid out for."""
    return TpuBackend(ANY_HEADS, "bfloat16", segments.tiles.blocks)


@partial(jax.jit, static_argnames=("scale", "interpret", "cap"), compiler_options=EMULATED)
def _attend(
    inputs: tuple[jax.Array, ...], segments: LaidOut, scale: float, interpret: Interpret, cap: float | None
) -> jax.Array:
    with compiling_for(interpret=interpret, bounds_checks=True):
        return segment_attention(*inputs, segments, scale=scale, cap=cap, backend=backend_of(segments))


def assert_agrees(out: np.ndarray, inputs: Sequence[jax.Array], segments: LaidOut, scale: float) -> None:
    """Fail unless the kernel's output is the reference's, and zero where nothing is seen.

    Matrix units multiply float32 in several passes of bfloat16.
    """
    with on_host():
        wide = (jnp.asarray(np.asarray(x, np.float32)) for x in inputs)
        expected = np.asarray(_reference(*wide, segments, scale=scale))
    tolerance = 1e-4 if out.dtype == np.float32 else 1e-2
    out, rows = out.astype(np.float32), live(segments)
    assert np.all(out[~rows] == 0)
    np.testing.assert_allclose(out[rows], expected[rows], atol=tolerance, rtol=tolerance)


def check(case: Case, interpret: Interpret) -> None:
    """Fail unless the kernel agrees with the reference on a case."""
    segments, pages = lay_out_case(case)
    inputs = arrays(case, pages, segments)
    assert_agrees(attend(inputs, segments, case.scale, interpret), inputs, segments, case.scale)
