"""Attention on GPUs: a kernel whose every program visits the contexts and the own keys of a block of rows.

One launch a layer, whatever a step holds: what a program visits is data that it reads. Pages are read where they lie,
by page number and slot of each key. Rows of all query heads of a KV head share the keys that are read.

The order of a row's sum depends on absolute positions in its context, and in its own segment on nothing that lies
beside it; what a row does not see adds an exact zero. Emulated, a row has the same bits among any others.

The kernel is lowered by Pallas through Triton, which knows GPUs since Ampere (compute capability 8.0).
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from math import e, log2
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from mis_kernels.activations import logits_of
from mis_kernels.backends.gpu.tiles import KEYS, GpuBlocks, GpuTiles
from mis_kernels.backends.laid_out import LaidOut
from mis_kernels.storage import from_bits
from mis_kernels.target import target

WARPS = 4
STAGES = 2
WIDE = 128
"""Of wider heads, one tile at a time fits the shared memory of an L4, not the two of two stages."""

_MASKED = -1e30
_LOWEST = -1e29  # above what is masked, so that a row without any visible key gives it no weight

_LOWERING = "jax.experimental.pallas.triton"

_Ref = Any


class _Shape(NamedTuple):
    blocks: GpuBlocks
    group: int
    head_dim: int
    scale: float  # of logits to base 2
    cap: float | None  # of these
    slides: bool  # whether rows see a window of what comes before them

    @property
    def columns(self) -> int:
        """Elements of a head, rounded up to a power of two."""
        return 1 << (self.head_dim - 1).bit_length()

    def used(self) -> Array:
        """Return the element that each column reads. Only a plain range is read sixteen bytes at a time."""
        column = jnp.arange(self.columns)
        return column if self.columns == self.head_dim else jnp.minimum(column, self.head_dim - 1)


class _Lists(NamedTuple):
    """What is visited: fields of `GpuTiles`, and the page table."""

    starts: _Ref
    context_id: _Ref
    first: _Ref
    reach: _Ref
    shared_first: _Ref
    shared: _Ref
    own_ranks: _Ref
    own_shared: _Ref
    own_keys: _Ref
    page_table: _Ref


class _Rows(NamedTuple):
    """The rows of a program, `[rows]` each: where they lie, and what they see."""

    token: Array
    head: Array
    context_id: Array
    context_first: Array
    context_len: Array
    own_first: Array


class _Softmax(NamedTuple):
    """Running state of the online softmax (arXiv 1805.02867, section 3), in float32."""

    highest: Array  # [rows]
    total: Array  # [rows]
    weighted: Array  # [rows, columns]

    def add(self, k: Array, v: Array, visible: Array | None = None, *, q: Array, shape: _Shape) -> "_Softmax":
        """Take in a tile: k and v `[keys, columns]`, visible `[rows, keys]` or all of them, q `[rows, columns]`."""
        logits = logits_of(_product(q, k, 1), shape.scale, shape.cap)
        logits = logits if visible is None else jnp.where(visible, logits, _MASKED)
        highest = jnp.maximum(self.highest, logits.max(1))
        weights = jnp.exp2(logits - highest[:, None])
        fade = jnp.exp2(self.highest - highest)
        weighted = self.weighted * fade[:, None] + _product(weights.astype(v.dtype), v, 0)
        return _Softmax(highest, self.total * fade + weights.sum(1), weighted)


def is_lowered() -> bool:
    """Whether this JAX still has the lowering; later ones will not, see decision 22."""
    return find_spec(_LOWERING) is not None


def gpu_attention(
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
    """Attend in one kernel. Arguments and result as in `mis_kernels.segment_attention`.

    Raises:
        ValueError: `segments` have no lists for this kernel.
    """
    from jax.experimental.pallas import triton as plt  # only here: other devices must not need it

    tiles = segments.tiles
    if not isinstance(tiles, GpuTiles):
        raise ValueError("segments: were not laid out for gpu")
    tokens, heads, head_dim = q.shape
    shape = _Shape(
        blocks=tiles.blocks,
        group=heads // k.shape[1],
        head_dim=head_dim,
        scale=scale * log2(e),
        cap=None if cap is None else cap * log2(e),
        slides=segments.window is not None,
    )
    lists = *(getattr(tiles, name) for name in _Lists._fields[:-1]), segments.page_table
    # Without a window nothing reads where a context begins to be seen; zeros for it would be another launch.
    context_first = segments.context_len if segments.window is None else segments.context_first
    facts = segments.context_id, context_first, segments.context_len, segments.own_first
    return pl.pallas_call(
        partial(_kernel, shape=shape),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(tokens // tiles.blocks.tokens, k.shape[1]),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * (len(lists) + len(facts) + 5),
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        compiler_params=plt.CompilerParams(num_warps=WARPS, num_stages=STAGES if head_dim <= WIDE else 1),
        interpret=bool(target().interpret),
        name="segment_attention",
    )(*map(jnp.asarray, (*lists, *facts)), q, k, v, from_bits(k_pages), from_bits(v_pages))


def _kernel(*refs: _Ref, shape: _Shape) -> None:
    """Compute the rows of one KV head and one block of tokens."""
    count = len(_Lists._fields)
    lists, (*facts, q, k, v, k_pages, v_pages, out) = _Lists(*refs[:count]), refs[count:]
    block, kv_head = pl.program_id(0), pl.program_id(1)
    rows, used = _rows_of(block, kv_head, facts, shape), shape.used()
    queries = q[rows.token[:, None], rows.head[:, None], used[None, :]]
    if shape.columns > shape.head_dim:  # a head's last element, which is repeated, counts once in a product
        queries = jnp.where(jnp.arange(shape.columns) < shape.head_dim, queries, 0)

    def own(key: Array) -> tuple[Array, Array]:
        at = key[:, None], kv_head, used[None, :]
        return k[at], v[at]

    def cached(context: Array, position: Array) -> tuple[Array, Array]:
        page_size = k_pages.shape[2]
        page = jnp.minimum(lax.div(position, page_size), lists.page_table.shape[1] - 1)
        at = lists.page_table[context, page][:, None], lax.rem(position, page_size)[:, None], used[None, :]
        return k_pages[kv_head, *at], v_pages[kv_head, *at]

    nothing = jnp.zeros(shape.blocks.rows, jnp.float32)
    state = _Softmax(nothing + _LOWEST, nothing, jnp.zeros((shape.blocks.rows, shape.columns), jnp.float32))
    add = partial(_Softmax.add, q=queries, shape=shape)
    # In this order: the compiler runs the products of a loop of whole tiles one after the other if it follows `visit`.
    state = _add_own(state, add, own, block, lists, rows)
    state = _add_contexts(state, add, cached, block, lists, rows, slides=shape.slides)
    total = jnp.where(state.total > 0, state.total, 1)[:, None]  # a row that saw nothing is zero
    out[rows.token[:, None], rows.head[:, None], used[None, :]] = (state.weighted / total).astype(out.dtype)


def _add_own(
    state: _Softmax,
    add: Callable[..., _Softmax],
    read: Callable[[Array], tuple[Array, Array]],
    block: Array,
    lists: _Lists,
    rows: _Rows,
) -> _Softmax:
    """Take in the new keys of a block: first the tiles that all rows see whole, which need no mask."""

    def whole(rank: Array, state: _Softmax) -> _Softmax:
        return add(state, *read(lists.own_keys[rank, block, 0] + jnp.arange(KEYS)))

    def edge(rank: Array, state: _Softmax) -> _Softmax:
        key = lists.own_keys[rank, block, :]
        keys, values = read(jnp.maximum(key, 0))
        visible = (key[None] >= rows.own_first[:, None]) & (key[None] <= rows.token[:, None])
        return add(state, keys, jnp.where((key >= 0)[:, None], values, 0), visible)

    state = lax.fori_loop(0, lists.own_shared[block], whole, state)
    return lax.fori_loop(lists.own_shared[block], lists.own_ranks[block], edge, state)


def _add_contexts(
    state: _Softmax,
    add: Callable[..., _Softmax],
    read: Callable[[Array, Array], tuple[Array, Array]],
    block: Array,
    lists: _Lists,
    rows: _Rows,
    *,
    slides: bool,
) -> _Softmax:
    """Take in the contexts that a block visits, from the first tile that some row sees; some are seen by all, whole."""

    def visit(number: Array, state: _Softmax) -> _Softmax:
        context, stop = lists.context_id[number], lists.reach[number]
        limit = jnp.where(rows.context_id == context, rows.context_len, 0)
        shared_first, shared = lists.shared_first[number] if slides else 0, lists.shared[number]

        def whole(tile: Array, state: _Softmax) -> _Softmax:
            return add(state, *read(context, tile * KEYS + jnp.arange(KEYS)))

        def edge(tile: Array, state: _Softmax) -> _Softmax:
            position = tile * KEYS + jnp.arange(KEYS)
            keys, values = read(context, position)
            # Unused cache memory may hold NaN, and 0 * NaN is NaN.
            values = jnp.where((position < stop)[:, None], values, 0)
            visible = position[None] < limit[:, None]
            if slides:
                visible &= position[None] >= rows.context_first[:, None]
            return add(state, keys, values, visible)

        if slides:
            state = lax.fori_loop(lists.first[number], shared_first, edge, state)
        state = lax.fori_loop(shared_first, shared, whole, state)
        return lax.fori_loop(shared, pl.cdiv(stop, KEYS), edge, state)

    return lax.fori_loop(lists.starts[block], lists.starts[block + 1], visit, state)


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
