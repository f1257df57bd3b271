"""Blocked attention in plain XLA, for CPU and any device without a kernel of its own.

Visits only tiles that some row of a block sees, of some blocks at a time, and keeps their logits small enough for the
cache. Every product has at least 64 rows and every sum over keys is a product, so a row's bits do not
depend on how many rows lie beside it, nor - thanks to the order of keys in `tiles` - on other
segments. Operands keep their type, products accumulate in float32: on CPUs a bfloat16 output is
several times slower than a float32 one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.activations import logits_of
from mis_kernels.backends.laid_out import LaidOut
from mis_kernels.backends.xla.tiles import CONTEXT_TILE, ROW_BLOCK, WIDTHS, BlockTiles, own_block
from mis_kernels.storage import from_bits, round_to, to_bits

_MASKED = -1e30
_LOWEST = -1e29  # above what is masked, so that a row without any visible key gives it no weight
_TOTAL_COLUMNS = 16

_Logits = Callable[[Array], Array]
"""Makes logits of products of queries and keys: scales them, and caps them if there is a cap."""


class _Softmax(NamedTuple):
    """Running state of the online softmax (arXiv 1805.02867, section 3); leading axes are batches."""

    highest: Array  # [..., rows, 1] float32
    total: Array  # [..., rows, 1] float32
    weighted: Array  # [..., rows, head_dim] float32

    @classmethod
    def empty(cls, *shape: int) -> "_Softmax":
        column = jnp.zeros((*shape[:-1], 1), jnp.float32)
        return cls(column + _LOWEST, column, jnp.zeros(shape, jnp.float32))

    def add(self, q: Array, k: Array, v: Array, visible: Array, of_products: _Logits) -> "_Softmax":
        """Take in a tile: q `[..., rows, head_dim]`, k and v `[..., keys, head_dim]`, visible `[..., rows, keys]`."""
        logits = jnp.where(visible, of_products(_product(q, k, 1)), _MASKED)
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
    """Attend block by block. Arguments, result and errors as in `mis_kernels.segment_attention`."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    tiles = segments.tiles
    if not isinstance(tiles, BlockTiles):
        raise ValueError("segments: were not laid out for xla")
    if CONTEXT_TILE % k_pages.shape[2]:
        raise ValueError(f"k_pages: the page size {k_pages.shape[2]} does not divide {CONTEXT_TILE}")
    # Rows of a KV head: its query heads of one token, then of the next.
    rows = to_bits(q).reshape(tokens, kv_heads, -1, head_dim).swapaxes(0, 1).reshape(kv_heads, -1, head_dim)
    new = to_bits(k).swapaxes(0, 1), to_bits(v).swapaxes(0, 1)
    cached = to_bits(k_pages), to_bits(v_pages)
    of_products = partial(logits_of, scale=scale, cap=cap)

    def one_head(arguments: tuple[Array, Array]) -> Array:
        head, q = arguments
        state = _attend_contexts(q, cached, segments, head, of_products)
        return _attend_own(state, q, new, segments, head, of_products)

    out = lax.map(one_head, (jnp.arange(kv_heads), rows))
    return out.reshape(kv_heads, tokens, -1, head_dim).swapaxes(0, 1).reshape(tokens, heads, head_dim).astype(q.dtype)


def _attend_contexts(
    q: Array, cached: tuple[Array, Array], segments: LaidOut, head: Array, of_products: _Logits
) -> _Softmax:
    """Attend from a head's rows, `[rows, head_dim]`, to the cached tokens of their contexts."""
    tiles: BlockTiles = segments.tiles
    page_table, order = jnp.asarray(segments.page_table), jnp.asarray(tiles.order)
    runs, together = len(tiles.starts) - 1, tiles.used.shape[1]
    group = len(q) // segments.num_tokens
    facts = segments.context_id, segments.context_len
    facts = facts if segments.window is None else (*facts, segments.context_first)
    rows = (
        x.reshape(len(order), -1, x.shape[1])[order].reshape(runs, together, -1, x.shape[1])
        for x in (q, *(jnp.repeat(jnp.asarray(fact), group)[:, None] for fact in facts))
    )
    lists = [jnp.asarray(x) for x in (tiles.context_id, tiles.index, tiles.used)]
    starts, kind, fullest = (jnp.asarray(x) for x in (tiles.starts, tiles.kind, tiles.fullest))

    def one_run(arguments: tuple[Array, ...]) -> _Softmax:
        run, q, *seen_of = arguments

        def visit(number: Array, state: _Softmax) -> _Softmax:
            context, index, used = (x[number] for x in lists)
            seen = partial(_add_tiles, state, q, seen_of, cached, head, page_table, of_products=of_products)
            each = [partial(seen, context, index, used, used > 0, keys=keys) for keys in WIDTHS]
            one = fullest[number]  # the other tiles of a shared visit are parts of this one, or none
            shared = partial(seen, context[one], index[one], used[one], used > 0, keys=CONTEXT_TILE)
            return lax.switch(kind[number], [*each, shared])

        return lax.fori_loop(starts[run], starts[run + 1], visit, _Softmax.empty(*q.shape))

    state = lax.map(one_run, (jnp.arange(runs), *rows))
    rank = jnp.asarray(tiles.rank)
    return _Softmax(*(x.reshape(len(order), -1, x.shape[-1])[rank].reshape(len(q), -1) for x in state))


def _add_tiles(
    state: _Softmax,
    q: Array,
    seen_of: Sequence[Array],
    cached: tuple[Array, Array],
    head: Array,
    page_table: Array,
    context: Array,
    index: Array,
    used: Array,
    has_tile: Array,
    *,
    keys: int,
    of_products: _Logits,
) -> _Softmax:
    """Take in the first keys of a tile of each block, or of one tile for all blocks.

    Args:
        state: Of `[blocks, rows, ...]`.
        q: `[blocks, rows, head_dim]`.
        seen_of: Of each row its context, the end of what it sees of that, and with a window the beginning,
            `[blocks, rows, 1]` each.
        cached: Keys and values, `[kv_heads, pages, page_size, head_dim]`.
        head: The KV head of the rows.
        page_table: Pages of each context.
        context: Contexts of the tiles, `[blocks]` or a scalar.
        index: Which run of `CONTEXT_TILE` tokens of it, likewise.
        used: Tokens of it that may be seen, likewise.
        has_tile: Whether a block visits any, `[blocks]`.
        keys: How many keys are multiplied.
        of_products: Makes logits of products.
    """
    page_size, position = cached[0].shape[2], jnp.arange(keys)
    # Past the table's end the gather would clamp to its last page; those keys are not used.
    numbers = index[..., None] * (CONTEXT_TILE // page_size) + jnp.arange(-(-keys // page_size))
    chosen = page_table[context[..., None], numbers]
    k, v = (x[head, chosen].reshape(*context.shape, -1, q.shape[-1])[..., :keys, :] for x in cached)
    # Unused cache memory may hold NaN, and 0 * NaN is NaN.
    v = jnp.where((position < used[..., None])[..., None], v, v.dtype.type(0))
    at = index[..., None, None] * CONTEXT_TILE + position
    context_id, context_len, *context_first = seen_of
    visible = (context_id == context[..., None, None]) & (at < context_len) & has_tile[:, None, None]
    for first in context_first:
        visible &= at >= first
    rows = q.shape[:-1] if context.ndim else (-1,)
    *shaped, q, visible = (x.reshape(*rows, x.shape[-1]) for x in (*state, q, visible))
    added = _Softmax(*shaped).add(from_bits(q), from_bits(k), from_bits(v), visible, of_products)
    return _Softmax(*(x.reshape(y.shape) for x, y in zip(added, state, strict=True)))


def _attend_own(
    state: _Softmax, q: Array, new: tuple[Array, Array], segments: LaidOut, head: Array, of_products: _Logits
) -> Array:
    """Attend from a head's rows to the new tokens of their own segments; return what all their tiles give.

    Rows that visit context tiles together are computed together here, too: their own-blocks side by side.
    """
    tiles: BlockTiles = segments.tiles
    k, v = (x[head] for x in new)
    group, own_tokens = len(q) // segments.num_tokens, own_block(segments.num_tokens)
    tokens = tiles.used.shape[1] * ROW_BLOCK
    shape = (segments.num_tokens // tokens, tokens // own_tokens, own_tokens * group)
    token = jnp.arange(segments.num_tokens)
    first, token = (jnp.repeat(jnp.asarray(x), group).reshape(*shape, 1) for x in (segments.own_first, token))
    own_keys = jnp.asarray(tiles.own_keys)
    keys = own_keys.reshape(len(own_keys), shape[0], shape[1], -1).swapaxes(0, 1)

    def some(arguments: tuple[Array, ...]) -> Array:
        ranks, q, first, token, keys, *state = arguments

        def add(rank: Array, state: _Softmax) -> _Softmax:
            key = keys[rank]  # [own_blocks, keys]
            visible = (key[:, None] >= first) & (key[:, None] <= token)
            return state.add(from_bits(q), from_bits(k[key]), from_bits(v[key]), visible, of_products)

        return lax.fori_loop(0, ranks, add, _Softmax(*state)).result()

    ranks = jnp.asarray(tiles.own_ranks)
    return lax.map(some, (ranks, q.reshape(*shape, -1), first, token, keys, *(x.reshape(*shape, -1) for x in state)))
