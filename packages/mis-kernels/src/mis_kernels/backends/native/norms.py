"""Norms and RoPE in C++ for x86-64 CPUs with AVX-512: one pass over the projection instead of a dozen."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from mis_kernels.backends.native import library as native
from mis_kernels.storage import from_bits, to_bits

_VECTOR = 16  # float32 numbers in a vector


def is_available(x: Array) -> bool:
    """Whether arrays of this type and last dimension can be taken."""
    return x.dtype == jnp.bfloat16 and x.shape[-1] % (2 * _VECTOR) == 0 and native.is_loaded()


def native_rms_norm(x: Float[Array, "rows dim"], weight: Float[Array, " dim"], epsilon: float) -> Array:
    """Arguments and result as in `rms_norm`."""
    call = jax.ffi.ffi_call("mis_rms_norm", jax.ShapeDtypeStruct(x.shape, jnp.uint16))
    return from_bits(call(to_bits(x), to_bits(weight), epsilon=np.float32(epsilon)))


def native_norm_rope(
    qkv: Float[Array, "tokens kv_heads group_plus_two head_dim"],
    cos: Float32[Array, "tokens head_dim"],
    sin: Float32[Array, "tokens head_dim"],
    q_norm: Float[Array, " head_dim"] | None,
    k_norm: Float[Array, " head_dim"] | None,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """Arguments and results as in `norm_rope`.

    Raises:
        ValueError: the library is missing, or type, head width or CPU are not supported.
    """
    if not is_available(qkv):
        raise ValueError(f"implementation: native is not available here for {qkv.dtype} heads of {qkv.shape[3]}")
    tokens, kv_heads, parts, head_dim = qkv.shape
    normed = q_norm is not None and k_norm is not None
    none = jnp.zeros(head_dim, qkv.dtype)
    norms = (to_bits(q_norm), to_bits(k_norm)) if normed else (to_bits(none), to_bits(none))
    heads = (kv_heads * (parts - 2), kv_heads, kv_heads)
    call = jax.ffi.ffi_call(
        "mis_norm_rope", [jax.ShapeDtypeStruct((tokens, count, head_dim), jnp.uint16) for count in heads]
    )
    q, k, v = call(to_bits(qkv), cos, sin, *norms, epsilon=np.float32(epsilon), normed=np.bool_(normed))
    return from_bits(q), from_bits(k), from_bits(v)
