"""Attention in C++ for x86-64 CPUs with AMX, called through JAX's foreign function interface.

XLA:CPU works through a loop of small operations and spends most of an attention's time between its two
products; the native kernel keeps a tile's logits in the first-level cache.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from mis_kernels.backends.native import library as native
from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits, to_bits

_DIMENSION_STEP = 32  # numbers in a row of a tile register
_LARGEST_HEAD = 1024


def is_available(dtype: DTypeLike, head_dim: int) -> bool:
    """Whether attention of this type and head width runs natively here.

    Args:
        dtype: Type of queries, keys and values; bfloat16 only.
        head_dim: Width of a head; multiples of 32.
    """
    fits = jnp.dtype(dtype) == jnp.bfloat16 and head_dim % _DIMENSION_STEP == 0 and head_dim <= _LARGEST_HEAD
    return fits and native.is_loaded()


def native_attention(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    v_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    segments: Segments,
    *,
    scale: float,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend row by row. Arguments and result as in `segment_attention`; needs no tiles.

    Raises:
        ValueError: the library is missing, or type, head width or CPU are not supported.
    """
    if not is_available(q.dtype, q.shape[2]):
        raise ValueError(f"implementation: native is not available here for {q.dtype} heads of {q.shape[2]}")
    rows = (jnp.asarray(x) for x in (segments.context_id, segments.context_len, segments.segment_start))
    call = jax.ffi.ffi_call("mis_segment_attention", jax.ShapeDtypeStruct(q.shape, jnp.uint16))
    bits = (to_bits(x) for x in (q, k, v, k_pages, v_pages))
    return from_bits(call(*bits, *rows, jnp.asarray(segments.page_table), scale=np.float32(scale)))
