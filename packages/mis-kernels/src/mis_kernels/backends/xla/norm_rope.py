"""Norms of queries and keys, and RoPE, in plain XLA: the oracle of the kernel, and what CPUs and GPUs run."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from mis_kernels.backends.xla.norms import rms_norm


def rotate(
    x: Float[Array, "tokens heads head_dim"],
    cos: Float32[Array, "tokens head_dim"],
    sin: Float32[Array, "tokens head_dim"],
) -> Float[Array, "tokens heads head_dim"]:
    """Apply RoPE in the half-split layout of Hugging Face checkpoints, in float32."""
    x32 = x.astype(jnp.float32)
    first, second = jnp.split(x32, 2, axis=-1)
    swapped = jnp.concatenate([second, first], axis=-1)
    return (x32 * cos[:, None] + swapped * sin[:, None]).astype(x.dtype)


def norm_rope_reference(
    qkv: Float[Array, "tokens kv_heads group_plus_two head_dim"],
    cos: Float32[Array, "tokens head_dim"],
    sin: Float32[Array, "tokens head_dim"],
    q_norm: Float[Array, " head_dim"] | None,
    k_norm: Float[Array, " head_dim"] | None,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """Arguments and results as in `norm_rope`."""
    tokens, kv_heads, parts, head_dim = qkv.shape
    q = qkv[:, :, : parts - 2].reshape(tokens, kv_heads * (parts - 2), head_dim)
    k, v = qkv[:, :, parts - 2], qkv[:, :, parts - 1]
    q = q if q_norm is None else rms_norm(q, q_norm, epsilon)
    k = k if k_norm is None else rms_norm(k, k_norm, epsilon)
    return rotate(q, cos, sin), rotate(k, cos, sin), v
