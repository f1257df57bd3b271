"""Norms of queries and keys, and RoPE, in plain XLA: the oracle of the kernels, and what CPUs and GPUs run."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from mis_kernels.backends.xla.norms import rms_norm


def rotary_tables(
    positions: Int32[Array, " tokens"], inverse_frequencies: Float32[Array, " half_head_dim"], factor: float = 1.0
) -> tuple[Float32[Array, "tokens head_dim"], Float32[Array, "tokens head_dim"]]:
    """Return cosines, and sines with the sign each half needs, once for all layers of a step.

    Source: RoPE, arXiv 2104.09864, section 3.4.2, in the half-split order.
    """
    angles = positions.astype(jnp.float32)[:, None] * inverse_frequencies
    cos, sin = jnp.cos(angles) * factor, jnp.sin(angles) * factor
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


def rotate(
    x: Float[Array, "tokens heads head_dim"],
    cos: Float32[Array, "tokens head_dim"],
    sin: Float32[Array, "tokens head_dim"],
) -> Float[Array, "tokens heads head_dim"]:
    """Apply RoPE in the half-split order of Hugging Face checkpoints, in float32."""
    x32 = x.astype(jnp.float32)
    first, second = jnp.split(x32, 2, axis=-1)
    swapped = jnp.concatenate([second, first], axis=-1)
    return (x32 * cos[:, None] + swapped * sin[:, None]).astype(x.dtype)


def norm_rope(
    qkv: Array, cos: Array, sin: Array, q_norm: Array | None, k_norm: Array | None, epsilon: float
) -> tuple[Array, Array, Array]:
    """Arguments and results as in `mis_kernels.norm_rope`."""
    tokens, kv_heads, parts, head_dim = qkv.shape
    q = qkv[:, :, : parts - 2].reshape(tokens, kv_heads * (parts - 2), head_dim)
    k, v = qkv[:, :, parts - 2], qkv[:, :, parts - 1]
    q = q if q_norm is None else rms_norm(q, q_norm, epsilon)
    k = k if k_norm is None else rms_norm(k, k_norm, epsilon)
    return rotate(q, cos, sin), rotate(k, cos, sin), v
