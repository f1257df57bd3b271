"""Attention with masks that are arrays, as servers had it before segments: the baseline of measurements.

The arrays are made for one KV head, one context and a block of rows at a time. The block is as large as `DENSE_BYTES`
allows, so a step of any size takes about as much memory as the model's other arrays.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.activations import capped
from mis_kernels.backends.reference.backend import ReferenceBackend
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.masks import dense_mask, intervals_of_segments
from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits

DENSE_BYTES = 512 << 20
"""Temporary memory that dense attention may take on each device."""

FEWEST_ROWS = 8
"""Rows of the smallest block; a TPU pads fewer to these."""


@dataclasses.dataclass(frozen=True, slots=True)
class DenseSize:
    """What the memory of dense attention depends on, on each device.

    Attributes:
        tokens: New tokens of the step.
        context_tokens: Room for the context in its page table, in tokens.
        group: Query heads of a KV head.
        head_dim: Width of a head in the cache.
    """

    tokens: int
    context_tokens: int
    group: int
    head_dim: int

    @property
    def keys(self) -> int:
        """Keys that a row has a place in the mask for: those of one context, and all new ones."""
        return self.context_tokens + self.tokens

    @property
    def rows(self) -> int:
        """Rows of a block: the most that keep within `DENSE_BYTES`, or the fewest that there are."""
        rows = self.tokens
        while rows % 2 == 0 and rows // 2 >= FEWEST_ROWS and self._bytes(rows) > DENSE_BYTES:
            rows //= 2
        return rows

    @property
    def bytes(self) -> int:
        """Temporary memory of the attention of one layer."""
        return self._bytes(self.rows)

    def _bytes(self, rows: int) -> int:
        """Count keys and values, gathered and in float32; mask and three arrays like the logits; queries and output."""
        keys_and_values = 2 * self.keys * self.head_dim * 8
        block = rows * self.keys * (1 + 3 * 4 * self.group)
        return keys_and_values + block + 4 * self.tokens * self.group * self.head_dim * 4


def dense_attention(
    q: Array,
    k: Array,
    v: Array,
    k_pages: Array,
    v_pages: Array,
    segments: Segments,
    *,
    scale: float,
    cap: float | None = None,
) -> Array:
    """Attend with a mask and logits for every key that a row has a place for, seen or not.

    Arguments and result as in `mis_kernels.segment_attention`. `DenseSize` says what memory it takes.
    """
    tokens, heads, head_dim = q.shape
    group, page_size = heads // k.shape[1], k_pages.shape[2]
    page_table, context_id = jnp.asarray(segments.page_table), jnp.asarray(segments.context_id)
    size = DenseSize(tokens, page_table.shape[1] * page_size, group, head_dim)
    sees_something = (jnp.asarray(segments.context_len) > 0) | (
        jnp.asarray(segments.segment_start) <= jnp.arange(tokens)
    )
    contexts = jnp.where(sees_something, context_id + 1, 0).max()

    def of_head(head: Array) -> Array:  # [tokens, group, head_dim]
        queries = lax.dynamic_slice_in_dim(q, head * group, group, 1).astype(jnp.float32)

        def of_context(context: Array, out: Array) -> Array:
            own = _of_one_context(segments, context)
            keys, values = (
                _joined(from_bits(pages[head, page_table[context]]), new[:, head], own)
                for pages, new in ((k_pages, k), (v_pages, v))
            )
            found = _attend_in_blocks(queries, keys, values, own, page_size, size.rows, scale, cap).astype(q.dtype)
            return jnp.where((context_id == context)[:, None, None], found, out)

        nothing = jnp.zeros((tokens, group, head_dim), q.dtype)
        return lax.fori_loop(0, contexts, of_context, nothing)

    return lax.map(of_head, jnp.arange(k.shape[1])).swapaxes(0, 1).reshape(q.shape)


def _of_one_context(segments: Segments, context: Array) -> Segments:
    """Return the segments as if there were one context only; rows behind others see nothing."""
    is_of_it = jnp.asarray(segments.context_id) == context
    return Segments(
        context_id=jnp.zeros_like(segments.context_id),
        context_len=jnp.where(is_of_it, jnp.asarray(segments.context_len), 0),
        segment_start=jnp.where(is_of_it, jnp.asarray(segments.segment_start), jnp.arange(segments.num_tokens) + 1),
        page_table=jnp.asarray(segments.page_table)[:1],  # how many pages there are, not which
        page_writes=segments.page_writes,
        window=segments.window,
    )


def _joined(cached: Array, new: Array, segments: Segments) -> Array:
    """Return keys or values of a context, then the new ones, `[keys, head_dim]` in float32.

    Memory nobody has written may hold anything, NaN included; nobody sees it, and so it becomes zero.
    """
    cached = cached.reshape(-1, cached.shape[-1])
    is_written = jnp.arange(len(cached)) < segments.context_len.max()
    is_seen = jnp.asarray(segments.segment_start) <= jnp.arange(len(new))
    joined = jnp.concatenate([cached, new]).astype(jnp.float32)
    return jnp.where(jnp.concatenate([is_written, is_seen])[:, None], joined, 0)


def _attend_in_blocks(
    queries: Array,
    keys: Array,
    values: Array,
    segments: Segments,
    page_size: int,
    rows: int,
    scale: float,
    cap: float | None,
) -> Array:
    intervals = intervals_of_segments(segments, page_size)

    def attend(queries: Array, mask: Array) -> Array:
        with jax.default_matmul_precision("highest"):
            logits = capped(jnp.einsum("rgd,kd->grk", queries, keys) * scale, cap)
            weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf), axis=-1)
            weights = jnp.where(mask.any(1)[:, None], weights, 0)  # a row that sees nothing is zero
            return jnp.einsum("grk,kd->rgd", weights, values)

    def block(begin: Array) -> Array:  # [rows, group, head_dim]
        mine, of_rows = (
            jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, begin, rows), part) for part in (queries, intervals)
        )
        mask = dense_mask(of_rows, len(keys))
        # All rows of a block may be padding, or lie behind other contexts.
        return lax.cond(mask.any(), attend, lambda queries, _: jnp.zeros_like(queries), mine, mask)

    return lax.map(block, jnp.arange(0, len(queries), rows)).reshape(queries.shape)


class DenseBackend(ReferenceBackend):
    """Attends as the reference, in blocks, and recurs as plain XLA; chosen by name alone, as the reference is."""

    name = "dense"
    attend = staticmethod(dense_attention)
    gated_delta = staticmethod(XlaBackend.gated_delta)
    gated_delta_decode = staticmethod(XlaBackend.gated_delta_decode)


BACKENDS = (DenseBackend,)
