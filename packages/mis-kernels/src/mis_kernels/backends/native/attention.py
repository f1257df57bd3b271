"""Attention in C++ for x86-64 CPUs with AMX, called through JAX's foreign function interface.

XLA:CPU works through a loop of small operations and spends most of an attention's time between its two
products; the native kernel keeps a tile's logits in the first-level cache.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits, to_bits

_DIMENSION_STEP = 32  # numbers in a row of a tile register
_LARGEST_HEAD = 1024


def misfit(head_dim: int) -> str | None:
    """Return why heads of this width are not taken, or None."""
    if head_dim % _DIMENSION_STEP or head_dim > _LARGEST_HEAD:
        return f"needs heads of a multiple of {_DIMENSION_STEP} up to {_LARGEST_HEAD}, not {head_dim}"
    return None


def native_attention(
    q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: Segments, *, scale: float
) -> Array:
    """Attend row by row. Arguments and result as in `mis_kernels.segment_attention`; takes any segments.

    Raises:
        ValueError: type or head width are not supported.
    """
    if q.dtype != jnp.bfloat16 or misfit(q.shape[2]):
        raise ValueError(f"q: native attention takes no {q.dtype} heads of {q.shape[2]}")
    rows = (jnp.asarray(x) for x in (segments.context_id, segments.context_len, segments.segment_start))
    call = jax.ffi.ffi_call("mis_segment_attention", jax.ShapeDtypeStruct(q.shape, jnp.uint16))
    bits = (to_bits(x) for x in (q, k, v, k_pages, v_pages))
    return from_bits(call(*bits, *rows, jnp.asarray(segments.page_table), scale=np.float32(scale)))
