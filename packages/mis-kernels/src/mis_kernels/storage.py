"""How 16-bit floats lie in memory where a compiler is slow at moving them.

XLA:CPU (jax 0.10.2) has no bfloat16 data movement: a slice, gather or update of a bfloat16 array is
compiled as a conversion of the array to float32, the movement, and a conversion back, element by
element; an update even rewrites the whole array. Integers of the same width move at memory speed.
Arrays that are mostly sliced (weights of scanned layers, KV caches) are therefore kept as their bits
there, and become floats right before they are used.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array


def to_bits(x: Array) -> Array:
    """Return the bits of a bfloat16 array as uint16; any other array as it is."""
    return lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: Array) -> Array:
    """Return the bfloat16 array whose bits `x` (uint16) holds; any other array as it is."""
    return lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def round_to(x: Array, dtype: DTypeLike) -> Array:
    """Round finite float32 values to `dtype`, to nearest even.

    XLA:CPU converts to bfloat16 one element at a time; the same rounding in integers is vectorised.
    """
    if jnp.dtype(dtype) != jnp.bfloat16:
        return x.astype(dtype)
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    rounded = (bits + jnp.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return lax.bitcast_convert_type(rounded.astype(jnp.uint16), jnp.bfloat16)
