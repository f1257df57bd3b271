"""The visibility rule written out densely in float32: slow, obvious, the oracle of every test.

As a backend it is chosen by name alone, since plain XLA fits everything before it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from mis_kernels.activations import capped
from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.reference.recurrence import gated_delta, gated_delta_decode
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits


def visibility(segments: Segments, page_size: int) -> tuple[Bool[Array, "tokens keys"], Bool[Array, "tokens tokens"]]:
    """Return what each new token sees of the cache's slots in page-table order, and of the new tokens.

    Returns:
        `[tokens, contexts * pages_per_context * page_size]` and `[tokens, tokens]`.
    """
    contexts, pages = jnp.asarray(segments.page_table).shape
    slot_context = jnp.repeat(jnp.arange(contexts), pages * page_size)
    slot_position = jnp.tile(jnp.arange(pages * page_size), contexts)
    context_id, first, stop = (
        jnp.asarray(x)[:, None] for x in (segments.context_id, segments.context_first, segments.context_len)
    )
    in_context = (slot_context == context_id) & (slot_position >= first) & (slot_position < stop)
    token = jnp.arange(segments.num_tokens)
    in_segment = (token >= jnp.asarray(segments.own_first)[:, None]) & (token <= token[:, None])
    return in_context, in_segment


def reference_attention(
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
    """Attend with one dense softmax over the whole cache and all new tokens.

    Memory grows with tokens x (cache + tokens); for tests and masks alone. Arguments and result as
    in `mis_kernels.segment_attention`.
    """
    group = q.shape[1] // k.shape[1]
    page_size = k_pages.shape[2]
    slots = jnp.asarray(segments.page_table).reshape(-1)
    visible = jnp.concatenate(visibility(segments, page_size), axis=1)

    def keys_of(pages: Array, new: Array) -> Array:  # [keys, heads, head_dim]
        cached = from_bits(pages)[:, slots].reshape(pages.shape[0], -1, pages.shape[3]).swapaxes(0, 1)
        joined = jnp.concatenate([cached, new]).astype(jnp.float32)
        # Memory nobody has written may hold anything, NaN included; nobody sees it.
        joined = jnp.where(visible.any(0)[:, None, None], joined, 0)
        return jnp.repeat(joined, group, axis=1)

    with jax.default_matmul_precision("highest"):
        logits = jnp.einsum("qhd,khd->hqk", q.astype(jnp.float32), keys_of(k_pages, k)) * scale
        logits = capped(logits, cap)
        weights = jax.nn.softmax(jnp.where(visible, logits, -jnp.inf), axis=-1)
        weights = jnp.where(visible.any(1)[:, None], weights, 0)  # a row that sees nothing is zero
        return jnp.einsum("hqk,khd->qhd", weights, keys_of(v_pages, v)).astype(q.dtype)


class ReferenceBackend(XlaBackend):
    """Attends densely, recurs token by token; takes segments that were laid out for any backend."""

    name = "reference"
    platforms = ("cpu", "gpu", "tpu")
    context_tile = None

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """No tiles."""
        return ()

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add nothing."""
        return LaidOut(**vars(segments), tiles=None)

    attend = staticmethod(reference_attention)
    gated_delta = staticmethod(gated_delta)
    gated_delta_decode = staticmethod(gated_delta_decode)


BACKENDS = (ReferenceBackend,)
