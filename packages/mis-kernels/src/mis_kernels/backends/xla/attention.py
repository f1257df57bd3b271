"""Blocked attention in plain XLA, for CPU and any device without a kernel of its own.

Visits only tiles that some row of a block sees, and keeps one tile's logits small enough for the
cache. Every product has at least 64 rows and every sum over keys is a product, so a row's bits do not
depend on how many rows lie beside it, nor - thanks to the order of keys in `tiles` - on other
segments. Operands keep their type, products accumulate in float32: on CPUs a bfloat16 output is
several times slower than a float32 one.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.backends.laid_out import LaidOut
from mis_kernels.backends.xla.tiles import CONTEXT_TILE, BlockTiles, own_block
from mis_kernels.storage import from_bits, round_to, to_bits

_MASKED = -1e30
_LOWEST = -1e29  # above what is masked, so that a row without any visible key gives it no weight
_TOTAL_COLUMNS = 16


class _Softmax(NamedTuple):
    """Running state of the online softmax (arXiv 1805.02867, section 3); leading axes are batches."""

    highest: Array  # [..., rows, 1] float32
    total: Array  # [..., rows, 1] float32
    weighted: Array  # [..., rows, head_dim] float32

    @classmethod
    def empty(cls, *shape: int) -> "_Softmax":
        column = jnp.zeros((*shape[:-1], 1), jnp.float32)
        return cls(column + _LOWEST, column, jnp.zeros(shape, jnp.float32))

    def add(self, q: Array, k: Array, v: Array, visible: Array, scale: float) -> "_Softmax":
        """Take in a tile: q `[..., rows, head_dim]`, k and v `[..., keys, head_dim]`, visible `[..., rows, keys]`."""
        logits = _product(q, k, 1) * scale
        logits = jnp.where(visible, logits, _MASKED)
        highest = jnp.maximum(self.highest, logits.max(-1, keepdims=True))
        weights = round_to(jnp.exp(logits - highest), v.dtype)
        fade = jnp.exp(self.highest - highest)
        # The total sums the weights as rounded, by a product: a reduction's order of summation would
        # depend on the number of rows.
        total = _product(weights, jnp.ones((*v.shape[:-1], _TOTAL_COLUMNS), v.dtype), 0)[..., :1]
        return _Softmax(highest, self.total * fade + total, self.weighted * fade + _product(weights, v, 0))

    def result(self) -> Array:
        """Return the weighted mean; zero for a row that saw nothing."""
        return jnp.where(self.total > 0, self.weighted / jnp.where(self.total > 0, self.total, 1), 0)


def _product(a: Array, b: Array, contracted: int) -> Array:
    """Contract the last axis of `a` with the first or second non-batch axis of `b`."""
    batch = tuple(range(a.ndim - 2))
    axes = ((a.ndim - 1,), (len(batch) + contracted,)), (batch, batch)
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def xla_attention(
    q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut, *, scale: float
) -> Array:
    """Attend block by block. Arguments, result and errors as in `mis_kernels.segment_attention`."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    tiles = segments.tiles
    if not isinstance(tiles, BlockTiles):
        raise ValueError("segments: were not laid out for xla")
    if CONTEXT_TILE % k_pages.shape[2]:
        raise ValueError(f"k_pages: the page size {k_pages.shape[2]} does not divide {CONTEXT_TILE}")
    blocks = len(tiles.starts) - 1
    # Rows of a KV head: its query heads of one token, then of the next.
    rows = to_bits(q).reshape(tokens, kv_heads, -1, head_dim).swapaxes(0, 1).reshape(kv_heads * blocks, -1, head_dim)
    new = to_bits(k).swapaxes(0, 1), to_bits(v).swapaxes(0, 1)
    cached = to_bits(k_pages), to_bits(v_pages)

    def one_block(arguments: tuple[Array, Array]) -> Array:
        index, q = arguments
        head, block = index // blocks, index % blocks
        state = _Softmax.empty(*q.shape)
        state = _add_context(state, q, cached, segments, head, block, scale)
        return _add_own(state, q, new, segments, head, block, scale).result()

    out = lax.map(one_block, (jnp.arange(kv_heads * blocks), rows))
    return out.reshape(kv_heads, tokens, -1, head_dim).swapaxes(0, 1).reshape(tokens, heads, head_dim).astype(q.dtype)


def _add_context(
    state: _Softmax, q: Array, cached: tuple[Array, Array], segments: LaidOut, head: Array, block: Array, scale: float
) -> _Softmax:
    """Attend from a block's rows to the cached tokens of their contexts."""
    tiles: BlockTiles = segments.tiles
    k_pages, v_pages = cached
    page_size, head_dim = k_pages.shape[2], q.shape[1]
    pages_per_tile = CONTEXT_TILE // page_size
    tokens = segments.num_tokens // (len(tiles.starts) - 1)
    position = jnp.arange(CONTEXT_TILE)
    page_table, starts = jnp.asarray(segments.page_table), jnp.asarray(tiles.starts)
    context_id, context_len = (
        jnp.repeat(lax.dynamic_slice_in_dim(jnp.asarray(x), block * tokens, tokens), len(q) // tokens)[:, None]
        for x in (segments.context_id, segments.context_len)
    )

    def add(tile: Array, state: _Softmax) -> _Softmax:
        context, number, used = (jnp.asarray(x)[tile] for x in (tiles.context_id, tiles.index, tiles.used))
        # Past the table's end the gather would clamp to its last page; those keys are not `used`.
        pages = page_table[context, number * pages_per_tile + jnp.arange(pages_per_tile)]
        k = k_pages[head, pages].reshape(CONTEXT_TILE, head_dim)
        v = v_pages[head, pages].reshape(CONTEXT_TILE, head_dim)
        # Unused cache memory may hold NaN, and 0 * NaN is NaN.
        v = jnp.where((position < used)[:, None], v, v.dtype.type(0))
        visible = (context_id == context) & (number * CONTEXT_TILE + position < context_len)
        return state.add(from_bits(q), from_bits(k), from_bits(v), visible, scale)

    return lax.fori_loop(starts[block], starts[block + 1], add, state)


def _add_own(
    state: _Softmax, q: Array, new: tuple[Array, Array], segments: LaidOut, head: Array, block: Array, scale: float
) -> _Softmax:
    """Attend from a block's rows to the new tokens of their own segments: its own-blocks side by side."""
    tiles: BlockTiles = segments.tiles
    k, v = (x[head] for x in new)
    tokens = segments.num_tokens // (len(tiles.starts) - 1)
    group, own_tokens = len(q) // tokens, own_block(segments.num_tokens)
    side_by_side = (tokens // own_tokens, own_tokens * group)
    q = q.reshape(*side_by_side, -1)
    first = lax.dynamic_slice_in_dim(jnp.asarray(segments.segment_start), block * tokens, tokens)
    first = jnp.repeat(first, group).reshape(*side_by_side, 1)
    token = jnp.repeat(block * tokens + jnp.arange(tokens), group).reshape(*side_by_side, 1)

    def add(rank: Array, state: _Softmax) -> _Softmax:
        keys = jnp.asarray(tiles.own_keys)[rank]
        key = lax.dynamic_slice_in_dim(keys, block * tokens // own_tokens, side_by_side[0])  # [own_blocks, keys]
        visible = (key[:, None] >= first) & (key[:, None] <= token)
        return state.add(from_bits(q), from_bits(k[key]), from_bits(v[key]), visible, scale)

    shape = (*side_by_side, -1)
    state = lax.fori_loop(0, jnp.asarray(tiles.own_ranks), add, _Softmax(*(x.reshape(shape) for x in state)))
    return _Softmax(*(x.reshape(tokens * group, -1) for x in state))
