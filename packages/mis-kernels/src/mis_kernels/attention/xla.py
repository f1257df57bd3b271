"""Blocked attention in plain XLA, for CPU and any device without a kernel of its own.

Loops over KV heads and blocks of rows so that one tile's logits stay in cache, and visits only
tiles that some row of the block sees. All shapes inside the loops are fixed and every reduction
runs over one row's keys, so a row's bits do not depend on other segments (see `mis_kernels.tiles`).
Operands keep their type, products accumulate in float32: on CPUs a bfloat16 output is several times
slower than a float32 one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits, to_bits
from mis_kernels.tiles import CONTEXT_TILE, ROW_BLOCK, BlockTiles

_MASKED = -1e30
_NEVER = 2**30
_TOTAL_COLUMNS = 16


class _Softmax(NamedTuple):
    """Running state of the online softmax (arXiv 1805.02867, section 3) of a block of rows."""

    highest: Array  # [rows, 1] float32
    total: Array  # [rows, 1] float32
    weighted: Array  # [rows, head_dim] float32

    @classmethod
    def empty(cls, rows: int, head_dim: int) -> "_Softmax":
        column = jnp.zeros((rows, 1), jnp.float32)
        return cls(column + _MASKED, column, jnp.zeros((rows, head_dim), jnp.float32))

    def add(self, q: Array, k: Array, v: Array, visible: Array, scale: float) -> "_Softmax":
        """Take in a tile of keys; `visible` is `[rows, keys]`."""
        logits = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32) * scale
        logits = jnp.where(visible, logits, _MASKED)
        highest = jnp.maximum(self.highest, logits.max(1, keepdims=True))
        weights = jnp.where(visible, jnp.exp(logits - highest), 0).astype(v.dtype)
        fade = jnp.exp(self.highest - highest)
        # The total sums the weights as rounded for the product, by a product: faster on CPU than a
        # reduction, and its order of summation does not depend on the number of rows.
        ones = jnp.ones((v.shape[0], _TOTAL_COLUMNS), v.dtype)
        new, total = (
            lax.dot_general(weights, x, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32) for x in (v, ones)
        )
        return _Softmax(highest, self.total * fade + total[:, :1], self.weighted * fade + new)

    def result(self) -> Array:
        return jnp.where(self.total > 0, self.weighted / jnp.where(self.total > 0, self.total, 1), 0)


def xla_attention(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    v_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    segments: Segments,
    *,
    scale: float,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend block by block. Arguments and result as in `segment_attention`."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    tiles = segments.tiles
    blocks, own_blocks = len(tiles.starts) - 1, len(tiles.own_starts) - 1
    # Whole blocks even for a small step: a block of another shape could sum in another order.
    padding = blocks * ROW_BLOCK - tokens
    # Rows of a KV head: its query heads of one token, then of the next.
    rows = jnp.pad(to_bits(q), ((0, padding), (0, 0), (0, 0))).reshape(-1, kv_heads, group, head_dim)
    rows = rows.swapaxes(0, 1).reshape(kv_heads, -1, head_dim)
    by_row = tuple(
        jnp.repeat(jnp.pad(jnp.asarray(x), (0, padding), constant_values=nothing), group)
        for x, nothing in ((segments.context_id, 0), (segments.context_len, 0), (segments.segment_start, _NEVER))
    )
    k, v = to_bits(k).swapaxes(0, 1), to_bits(v).swapaxes(0, 1)
    k_pages, v_pages = to_bits(k_pages), to_bits(v_pages)

    def head(head_index: Array) -> Array:
        q_head, k_head, v_head = rows[head_index], k[head_index], v[head_index]
        own = lax.map(lambda block: _own(q_head, k_head, v_head, by_row[2], tiles, block, group, scale), jnp.arange(own_blocks))
        own = jax.tree.map(lambda x: x.reshape(blocks, -1, x.shape[-1]), own)

        def block(arguments: tuple[Array, _Softmax]) -> Array:
            index, state = arguments
            return _context(q_head, head_index, k_pages, v_pages, by_row, segments, index, blocks, state, scale)

        return lax.map(block, (jnp.arange(blocks), own)).reshape(-1, head_dim)

    out = lax.map(head, jnp.arange(kv_heads)).astype(q.dtype)
    return out.reshape(kv_heads, -1, group, head_dim).swapaxes(0, 1).reshape(-1, heads, head_dim)[:tokens]


def _block(array: Array, index: Array, blocks: int) -> Array:
    size = array.shape[0] // blocks
    return lax.dynamic_slice_in_dim(array, index * size, size)


def _own(
    q: Array, k: Array, v: Array, segment_start: Array, tiles: BlockTiles, block: Array, group: int, scale: float
) -> _Softmax:
    """Attend to the new tokens of the rows' own segments."""
    blocks = len(tiles.own_starts) - 1
    q_block, first = _block(q, block, blocks), _block(segment_start, block, blocks)
    token = (block * q_block.shape[0] + jnp.arange(q_block.shape[0])) // group

    def add(tile: Array, state: _Softmax) -> _Softmax:
        key = jnp.asarray(tiles.own_keys)[tile]
        visible = (key >= first[:, None]) & (key <= token[:, None])
        return state.add(from_bits(q_block), from_bits(k[key]), from_bits(v[key]), visible, scale)

    starts = jnp.asarray(tiles.own_starts)
    return lax.fori_loop(starts[block], starts[block + 1], add, _Softmax.empty(*q_block.shape))


def _context(
    q: Array,
    head: Array,
    k_pages: Array,
    v_pages: Array,
    by_row: tuple[Array, Array, Array],
    segments: Segments,
    block: Array,
    blocks: int,
    state: _Softmax,
    scale: float,
) -> Array:
    """Attend to the cached tokens of the rows' contexts, and finish the softmax."""
    tiles, page_size, head_dim = segments.tiles, k_pages.shape[2], q.shape[1]
    pages_per_tile = CONTEXT_TILE // page_size
    q_block = _block(q, block, blocks)
    context_id, context_len = (_block(array, block, blocks)[:, None] for array in by_row[:2])
    position = jnp.arange(CONTEXT_TILE)
    table = jnp.asarray(segments.page_table)

    def add(tile: Array, state: _Softmax) -> _Softmax:
        context, index, used = (jnp.asarray(x)[tile] for x in (tiles.context_id, tiles.index, tiles.used))
        # Past the table's end the gather would clamp to its last page; those keys are not `used`.
        pages = table[context, index * pages_per_tile + jnp.arange(pages_per_tile)]
        k = k_pages[head, pages].reshape(CONTEXT_TILE, head_dim)
        # Unused cache memory may hold NaN, and 0 * NaN is NaN.
        v = jnp.where((position < used)[:, None], v_pages[head, pages].reshape(CONTEXT_TILE, head_dim), v_pages.dtype.type(0))
        visible = (context_id == context) & (index * CONTEXT_TILE + position < context_len)
        return state.add(from_bits(q_block), from_bits(k), from_bits(v), visible, scale)

    starts = jnp.asarray(tiles.starts)
    return lax.fori_loop(starts[block], starts[block + 1], add, state).result()
