"""Attention on TPUs: lays arrays out for the kernel and calls it.

Where head_dim fills whole lanes, heads stay side by side as a projection leaves them,
`[tokens, heads * head_dim]`, and no transpose surrounds the kernel; else heads come first. Keys of
a tile are copied from HBM by the kernel itself: from the pages of the cache, or from the new tokens.
"""

from functools import partial
from math import e, log2

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from mis_kernels.backends.laid_out import LaidOut
from mis_kernels.backends.tpu.fetch import BUFFERS, LANES, KernelShape, in_hbm
from mis_kernels.backends.tpu.kernel import TOTAL_ROWS, attention_kernel
from mis_kernels.backends.tpu.tiles import TpuTiles, vmem_bytes
from mis_kernels.storage import from_bits
from mis_kernels.target import target

_VMEM_HEADROOM = 2
"""The compiler spills registers to VMEM; the limit it gets is the estimate times this."""
_VMEM_LIMITS = 32 * 2**20, 100 * 2**20


def tpu_attention(
    q: Array,
    k: Array,
    v: Array,
    k_pages: Array,
    v_pages: Array,
    segments: LaidOut,
    *,
    scale: float,
    cap: float | None = None,
) -> Array:
    """Attend tile by tile in one kernel. Arguments and result as in `mis_kernels.segment_attention`.

    Raises:
        ValueError: `segments` have no tiles for this kernel, or shapes do not fit it.
    """
    tiles = _tiles_of(segments, k_pages)
    tokens, heads, head_dim = q.shape
    kv_heads, group = k.shape[1], heads // k.shape[1]
    blocks = tiles.blocks
    count = -(-tokens // blocks.tokens)
    q_tokens, new_tokens = max(tokens, blocks.tokens), max(tokens, blocks.tokens, blocks.keys)
    shape = KernelShape(
        blocks=blocks,
        group=group,
        head_dim=head_dim,
        page_size=k_pages.shape[2],
        pages_per_context=segments.page_table.shape[1],
        new_tokens=new_tokens,
        by_lanes=head_dim % LANES == 0,
        scale=scale * log2(e),
        cap=None if cap is None else cap * log2(e),
    )
    arrange = partial(_arrange, by_lanes=shape.by_lanes)
    out = _call(
        shape,
        (kv_heads, count),
        _scalars(segments, tiles),
        _row_facts(segments, count * blocks.tokens),
        arrange(_pad(q, q_tokens)),
        *(arrange(_pad(x, new_tokens)) for x in (k, v)),
        *(from_bits(x).reshape(kv_heads, -1, head_dim) for x in (k_pages, v_pages)),
    )
    out = out.reshape(-1, heads, head_dim) if shape.by_lanes else out.swapaxes(0, 1)
    return out[:tokens]


def _tiles_of(segments: LaidOut, k_pages: Array) -> TpuTiles:
    tiles, page_size = segments.tiles, k_pages.shape[2]
    if not isinstance(tiles, TpuTiles):
        raise ValueError("segments: were not laid out for tpu")
    if tiles.blocks.keys % page_size:
        raise ValueError(
            f"k_pages: the page size {page_size} does not divide the kernel's tiles of {tiles.blocks.keys} keys"
        )
    return tiles


def _pad(x: Array, tokens: int) -> Array:
    return jnp.pad(x, ((0, tokens - x.shape[0]), (0, 0), (0, 0))) if x.shape[0] < tokens else x


def _arrange(x: Array, by_lanes: bool) -> Array:
    return x.reshape(x.shape[0], -1) if by_lanes else x.swapaxes(0, 1)


def _scalars(segments: LaidOut, tiles: TpuTiles) -> tuple[Array, ...]:
    arrays = tiles.bounds, tiles.context_id, tiles.first, tiles.used, tiles.contiguous, segments.page_table
    return tuple(jnp.asarray(x).reshape(-1) for x in arrays)


def _row_facts(segments: LaidOut, rows: int) -> Array:
    """Return of each row its context, how far it sees there, and its first visible new token, `[3, rows]`.

    With a window also where it begins to see its context, `[4, rows]`.
    """
    seen = segments.context_id, segments.context_len, segments.own_first
    seen = seen if segments.window is None else (*seen, segments.context_first)
    facts = jnp.stack([jnp.asarray(x) for x in seen])
    extra = rows - facts.shape[1]
    never = jnp.array([0, 0, jnp.iinfo(jnp.int32).max, 0], jnp.int32)[: len(seen), None]
    return jnp.concatenate([facts, jnp.broadcast_to(never, (len(seen), extra))], axis=1) if extra else facts


def _call(
    shape: KernelShape,
    grid: tuple[int, int],
    scalars: tuple[Array, ...],
    facts: Array,
    q: Array,
    *hbm: Array,
) -> Array:
    blocks, group, dim, dtype = shape.blocks, shape.group, shape.head_dim, q.dtype
    if shape.by_lanes:
        rows, own = (
            pl.BlockSpec((blocks.tokens, heads * dim), lambda head, block, *_: (block, head)) for heads in (group, 1)
        )
    else:
        rows, own = (
            pl.BlockSpec((heads, blocks.tokens, dim), lambda head, block, *_: (head, block, 0)) for heads in (group, 1)
        )
    estimate = vmem_bytes(blocks, group=group, head_dim=dim, itemsize=dtype.itemsize)
    low, high = _VMEM_LIMITS
    return pl.pallas_call(
        partial(attention_kernel, shape=shape),
        out_shape=jax.ShapeDtypeStruct(q.shape, dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=grid,
            in_specs=[pl.BlockSpec((len(facts), blocks.tokens), lambda head, block, *_: (0, block)), rows, own]
            + [pl.BlockSpec(memory_space=pl.ANY)] * len(hbm),
            out_specs=rows,
            scratch_shapes=[
                pltpu.VMEM((BUFFERS, blocks.keys, dim), dtype),
                pltpu.VMEM((BUFFERS, blocks.keys, dim), dtype),
                pltpu.VMEM((shape.rows, dim), dtype),
                pltpu.VMEM((1, shape.rows), jnp.float32),
                pltpu.VMEM((dim + TOTAL_ROWS, shape.rows), jnp.float32),
                pltpu.SemaphoreType.DMA((BUFFERS, 2)),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"),
            # `lay_out` has checked what page numbers are made of.
            disable_bounds_checks=not target().bounds_checks,
            vmem_limit_bytes=min(max(low, _VMEM_HEADROOM * estimate), high),
        ),
        interpret=target().interpret,
        name="segment_attention",
    )(*scalars, facts, *map(in_hbm, (q, hbm[0], *hbm)))
