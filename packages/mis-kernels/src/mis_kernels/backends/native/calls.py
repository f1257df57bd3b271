"""Attention, norms, RoPE and logits in C++, by JAX's foreign function interface.

XLA:CPU works through a loop of small operations and spends most of an attention's time between its two
products; the native kernel keeps a tile's logits in the first-level cache. Norms and RoPE take one pass over
the projection instead of a dozen. The head stays as it is stored, `[vocab, embed]`, which is how the first layer reads
it where both are the same array; XLA:CPU copies it into another order in every call.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Shaped

from mis_kernels.backends.native import library
from mis_kernels.backends.xla import norms, rope
from mis_kernels.segments import NO_WINDOW, Segments
from mis_kernels.storage import from_bits, to_bits

_TYPES = jnp.bfloat16, jnp.float32
_DIMENSION_STEP = 32  # numbers in a row of a tile register
_LARGEST_HEAD = 1024
_VECTOR = 16  # float32 numbers in a vector


def misfit(head_dim: int) -> str | None:
    """Return why heads of this width are not taken, or None."""
    if head_dim % _DIMENSION_STEP or head_dim > _LARGEST_HEAD:
        return f"needs heads of a multiple of {_DIMENSION_STEP} up to {_LARGEST_HEAD}, not {head_dim}"
    return None


def native_attention(
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
    """Attend row by row. Arguments and result as in `mis_kernels.segment_attention`; takes any segments.

    Raises:
        ValueError: type or head width are not supported.
    """
    if q.dtype not in _TYPES or misfit(q.shape[2]):
        raise ValueError(f"q: native attention does not support {q.dtype} heads of {q.shape[2]}")
    rows = (jnp.asarray(x) for x in (segments.context_id, segments.context_len, segments.segment_start))
    window = jnp.int32(NO_WINDOW if segments.window is None else segments.window)
    has_tiles = np.bool_(q.dtype == jnp.bfloat16 and library.has_tiles())
    bits = [to_bits(x) for x in (q, k, v, k_pages, v_pages)]
    call = _call("segment_attention", q, jax.ShapeDtypeStruct(q.shape, bits[0].dtype))
    logits = {"scale": np.float32(scale), "cap": np.float32(0 if cap is None else cap)}
    return from_bits(call(*bits, *rows, jnp.asarray(segments.page_table), window, **logits, has_tiles=has_tiles))


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Arguments and result as of `xla.norms.rms_norm`; XLA's where rows are no vectors."""
    if x.ndim != 2 or not _fits(x):
        return norms.rms_norm(x, weight, epsilon)
    bits = to_bits(x)
    call = _call("rms_norm", x, jax.ShapeDtypeStruct(x.shape, bits.dtype))
    return from_bits(call(bits, weight.astype(jnp.float32), epsilon=np.float32(epsilon)))


def norm_rope(
    qkv: Array, cos: Array, sin: Array, q_norm: Array | None, k_norm: Array | None, epsilon: float
) -> tuple[Array, Array, Array]:
    """Arguments and results as in `mis_kernels.norm_rope`; XLA's where heads are no vectors."""
    if not _fits(qkv):
        return rope.norm_rope(qkv, cos, sin, q_norm, k_norm, epsilon)
    tokens, kv_heads, parts, head_dim = qkv.shape
    normed = q_norm is not None and k_norm is not None
    given = (q_norm, k_norm) if normed else [jnp.zeros(head_dim)] * 2
    weights = [jnp.asarray(weight, jnp.float32) for weight in given]
    heads = (kv_heads * (parts - 2), kv_heads, kv_heads)
    bits = to_bits(qkv)
    call = _call("norm_rope", qkv, [jax.ShapeDtypeStruct((tokens, count, head_dim), bits.dtype) for count in heads])
    q, k, v = call(bits, cos, sin, *weights, epsilon=np.float32(epsilon), normed=np.bool_(normed))
    return from_bits(q), from_bits(k), from_bits(v)


def logits(x: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"]) -> Float32[Array, "rows vocab"]:
    """Multiply each row with each row of the head, read once; rows have whole vectors of summands (`fits_logits`).

    A logit's bits depend on the two rows alone, whatever the number of rows.

    Args:
        x: bfloat16.
        weight: bfloat16, or its bits.
    """
    out = jax.ShapeDtypeStruct((len(x), len(weight)), jnp.float32)
    call = jax.ffi.ffi_call("mis_logits", out)
    return call(to_bits(x), to_bits(weight), has_tiles=np.bool_(library.has_tiles()))


def log_sum_exp(
    x: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"], cap: float | None = None
) -> Float32[Array, " rows"]:
    """Return the log of the sum of the exponentials of each row's `logits`, which are never held together.

    Args:
        x: bfloat16.
        weight: bfloat16, or its bits.
        cap: Of the logits; None: there is none.
    """
    out = jax.ShapeDtypeStruct((len(x),), jnp.float32)
    call = jax.ffi.ffi_call("mis_exponentials", (out, out))
    has_tiles = np.bool_(library.has_tiles())
    limit = np.float32(0 if cap is None else cap)
    highest, total = call(to_bits(x), to_bits(weight), cap=limit, has_tiles=has_tiles)
    return highest + jnp.log(total)


def fits_logits(embed: int) -> bool:
    """Whether rows of logits' products have whole vectors of summands."""
    return embed % (2 * _VECTOR) == 0


def _call(name: str, x: Array, out: Any) -> Callable[..., Any]:
    """Return the function of a name that takes numbers of this type."""
    return jax.ffi.ffi_call(f"mis_float32_{name}" if x.dtype == jnp.float32 else f"mis_{name}", out)


def _fits(x: Array) -> bool:
    return x.dtype in _TYPES and x.shape[-1] % (2 * _VECTOR) == 0
