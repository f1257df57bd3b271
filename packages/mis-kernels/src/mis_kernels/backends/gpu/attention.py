"""Attention on GPUs: a kernel whose every program visits the contexts and the own keys of a block of rows.

One launch a layer, whatever a step holds: what a program visits is data that it reads. Pages are read where they lie,
by page number and slot of each key. Rows of all query heads of a KV head share the keys that are read.

The order of a row's sum depends on absolute positions in its context, and in its own segment on nothing that lies
beside it; what a row does not see adds an exact zero. Emulated, a row has the same bits among any others.

The kernel is lowered by Pallas through Triton, which knows GPUs since Ampere (compute capability 8.0).
"""

from functools import partial
from importlib.util import find_spec
from math import e, log2
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from mis_kernels.backends.gpu.tiles import KEYS, GpuBlocks, GpuTiles
from mis_kernels.backends.laid_out import LaidOut
from mis_kernels.storage import from_bits
from mis_kernels.target import target

WARPS = 8
STAGES = 2
_MASKED = -1e30
_LOWEST = -1e29  # above what is masked, so that a row without any visible key gives it no weight

_LOWERING = "jax.experimental.pallas.triton"

_Ref = Any


class _Shape(NamedTuple):
    blocks: GpuBlocks
    group: int
    head_dim: int
    scale: float  # of logits to base 2

    @property
    def columns(self) -> int:
        """Elements of a head, rounded up to a power of two."""
        return 1 << (self.head_dim - 1).bit_length()


class _Rows(NamedTuple):
    """The rows of a program, `[rows]` each: where they lie, and what they see."""

    token: Array
    head: Array
    context_id: Array
    context_len: Array
    segment_start: Array


class _Softmax(NamedTuple):
    """Running state of the online softmax (arXiv 1805.02867, section 3), in float32."""

    highest: Array  # [rows]
    total: Array  # [rows]
    weighted: Array  # [rows, columns]

    def add(self, q: Array, k: Array, v: Array, visible: Array, scale: float) -> "_Softmax":
        """Take in a tile: q `[rows, columns]`, k and v `[keys, columns]`, visible `[rows, keys]`."""
        logits = jnp.where(visible, _product(q, k, 1) * scale, _MASKED)
        highest = jnp.maximum(self.highest, logits.max(1))
        weights = jnp.exp2(logits - highest[:, None])
        fade = jnp.exp2(self.highest - highest)
        weighted = self.weighted * fade[:, None] + _product(weights.astype(v.dtype), v, 0)
        return _Softmax(highest, self.total * fade + weights.sum(1), weighted)


def is_lowered() -> bool:
    """Whether this JAX still has the lowering; later ones will not, see decision 22."""
    return find_spec(_LOWERING) is not None


def gpu_attention(
    q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut, *, scale: float
) -> Array:
    """Attend in one kernel. Arguments and result as in `mis_kernels.segment_attention`.

    Raises:
        ValueError: `segments` have no lists for this kernel.
    """
    from jax.experimental.pallas import triton as plt  # only here: other devices must not need it

    tiles = segments.tiles
    if not isinstance(tiles, GpuTiles):
        raise ValueError("segments: were not laid out for gpu")
    tokens, heads, head_dim = q.shape
    shape = _Shape(tiles.blocks, heads // k.shape[1], head_dim, scale * log2(e))
    lists = tiles.starts, tiles.context_id, tiles.reach, tiles.own_ranks, tiles.own_keys, segments.page_table
    facts = segments.context_id, segments.context_len, segments.segment_start
    return pl.pallas_call(
        partial(_kernel, shape=shape),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(tokens // tiles.blocks.tokens, k.shape[1]),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * (len(lists) + len(facts) + 5),
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        compiler_params=plt.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=bool(target().interpret),
        name="segment_attention",
    )(*map(jnp.asarray, (*lists, *facts)), q, k, v, from_bits(k_pages), from_bits(v_pages))


def _kernel(*refs: _Ref, shape: _Shape) -> None:
    """Compute the rows of one KV head and one block of tokens."""
    starts, context_id, reach, own_ranks, own_keys, page_table, *facts, q, k, v, k_pages, v_pages, out = refs
    block, kv_head = pl.program_id(0), pl.program_id(1)
    rows = _rows_of(block, kv_head, facts, shape)
    column = jnp.arange(shape.columns)
    used = jnp.minimum(column, shape.head_dim - 1)
    # Zeros where a head's last element is repeated: it counts once in a product.
    queries = jnp.where(column < shape.head_dim, q[rows.token[:, None], rows.head[:, None], used[None, :]], 0)
    nothing = jnp.zeros(shape.blocks.rows, jnp.float32)
    state = _Softmax(nothing + _LOWEST, nothing, jnp.zeros((shape.blocks.rows, shape.columns), jnp.float32))

    def visit(number: Array, state: _Softmax) -> _Softmax:
        context, stop = context_id[number], reach[number]
        limit = jnp.where(rows.context_id == context, rows.context_len, 0)

        def add(tile: Array, state: _Softmax) -> _Softmax:
            position = tile * KEYS + jnp.arange(KEYS)
            page = jnp.minimum(position // k_pages.shape[2], page_table.shape[1] - 1)
            at = page_table[context, page][:, None], (position % k_pages.shape[2])[:, None], used[None, :]
            values = v_pages[kv_head, *at]
            # Unused cache memory may hold NaN, and 0 * NaN is NaN.
            values = jnp.where((position < stop)[:, None], values, 0)
            return state.add(queries, k_pages[kv_head, *at], values, position[None] < limit[:, None], shape.scale)

        return lax.fori_loop(0, pl.cdiv(stop, KEYS), add, state)

    def add_own(rank: Array, state: _Softmax) -> _Softmax:
        key = own_keys[rank, block, :]
        at = jnp.maximum(key, 0)[:, None], kv_head, used[None, :]
        visible = (key[None] >= rows.segment_start[:, None]) & (key[None] <= rows.token[:, None])
        values = jnp.where((key >= 0)[:, None], v[at], 0)
        return state.add(queries, k[at], values, visible, shape.scale)

    state = lax.fori_loop(starts[block], starts[block + 1], visit, state)
    state = lax.fori_loop(0, own_ranks[block], add_own, state)
    total = jnp.where(state.total > 0, state.total, 1)[:, None]  # a row that saw nothing is zero
    out[rows.token[:, None], rows.head[:, None], used[None, :]] = (state.weighted / total).astype(out.dtype)


def _rows_of(block: Array, kv_head: Array, facts: list[_Ref], shape: _Shape) -> _Rows:
    """Return the rows of a program: the query heads of one token, then of the next.

    Rows that are too many repeat a head or the last token, as columns that are too many repeat a head's last element:
    they compute and write the same value again.
    """
    tokens, members = shape.blocks
    row = jnp.arange(shape.blocks.rows)
    inner, member = row // members, row % members
    token = block * tokens + jnp.minimum(inner, tokens - 1)
    head = kv_head * shape.group + jnp.minimum(member, shape.group - 1)
    return _Rows(token, head, *(fact[token] for fact in facts))


def _product(a: Array, b: Array, contracted: int) -> Array:
    """Contract the last axis of `a` with an axis of `b`; float32 in all its bits."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    axes = ((1,), (contracted,)), ((), ())
    return lax.dot_general(a, b, axes, precision=precision, preferred_element_type=jnp.float32)
