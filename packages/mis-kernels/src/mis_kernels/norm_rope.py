"""Norms of queries and keys, RoPE, and the split into q, k and v, by whichever implementation fits the platform."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from mis_kernels.backends.native.norms import is_available, native_norm_rope
from mis_kernels.backends.tpu.norm_rope import pallas_tpu_norm_rope
from mis_kernels.backends.xla.norm_rope import norm_rope_reference
from mis_kernels.target import platform

IMPLEMENTATIONS: dict[str, Callable[..., tuple[Array, Array, Array]]] = {
    "xla": norm_rope_reference,
    "native": native_norm_rope,
    "pallas_tpu": pallas_tpu_norm_rope,
}


def rotary_tables(
    positions: Int32[Array, " tokens"], inverse_frequencies: Float32[Array, " half_head_dim"], factor: float = 1.0
) -> tuple[Float32[Array, "tokens head_dim"], Float32[Array, "tokens head_dim"]]:
    """Return cosines, and sines with the sign each half needs, once for all layers of a step.

    Source: RoPE, arXiv 2104.09864, section 3.4.2, in the half-split layout.
    """
    angles = positions.astype(jnp.float32)[:, None] * inverse_frequencies
    cos, sin = jnp.cos(angles) * factor, jnp.sin(angles) * factor
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


def norm_rope(
    qkv: Float[Array, "tokens kv_heads group_plus_two head_dim"],
    cos: Float32[Array, "tokens head_dim"],
    sin: Float32[Array, "tokens head_dim"],
    q_norm: Float[Array, " head_dim"] | None,
    k_norm: Float[Array, " head_dim"] | None,
    epsilon: float,
    *,
    implementation: str | None = None,
) -> tuple[
    Float[Array, "tokens heads head_dim"],
    Float[Array, "tokens kv_heads head_dim"],
    Float[Array, "tokens kv_heads head_dim"],
]:
    """Turn a fused projection into queries, keys and values.

    Args:
        qkv: Per KV head its query heads, then its key, then its value. bf16 or f32; a multiple of 64 tokens.
        cos: Cosines of `rotary_tables`.
        sin: Sines of `rotary_tables`.
        q_norm: Weight of the queries' RMS norm, or None: no norm.
        k_norm: Weight of the keys' RMS norm, given together with `q_norm`.
        epsilon: Added to the mean square.
        implementation: `xla`, `native` or `pallas_tpu`; default: the best for the platform.

    Returns:
        q, k and v in the type of `qkv`; q and k normalised and rotated.

    Raises:
        ValueError: the implementation is unknown, or only one of the norms is given.
    """
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm, k_norm: give both or neither")
    name = implementation or _best(qkv)
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: {name!r} is unknown; choose from {', '.join(IMPLEMENTATIONS)}")
    with jax.named_scope(f"norm_rope_{name}"):
        return IMPLEMENTATIONS[name](qkv, cos, sin, q_norm, k_norm, epsilon)


def _best(qkv: Array) -> str:
    if platform() == "tpu":
        return "pallas_tpu"
    return "native" if is_available(qkv) else "xla"
