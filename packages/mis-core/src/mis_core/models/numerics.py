"""Matrix products as the models use them: operands of one type, sums in float32."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32


def dot(x: Float[Array, "rows in"], weight: Float[Array, "in out"]) -> Float[Array, "rows out"]:
    """Multiply, accumulate in float32, and return the type of `x`."""
    return product(x, weight).astype(x.dtype)


def product(x: Float[Array, "rows in"], weight: Float[Array, "in out"]) -> Float32[Array, "rows out"]:
    """Multiply and return the float32 sums."""
    return jnp.dot(x, weight, preferred_element_type=jnp.float32)
