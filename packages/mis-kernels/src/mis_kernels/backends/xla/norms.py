"""Norms whose bits for one row do not depend on how many rows are computed beside it.

On XLA:CPU a matrix product keeps a row's bits for any number of rows from 64 on, but a reduction
does not: whether it is handed to another library, with another order of summation, depends on the
array's size. Sums over rows are therefore products with ones there.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

_ONES = 16  # columns; narrower products take other paths


def row_sum(x: Float32[Array, "*rows dim"]) -> Float32[Array, "*rows 1"]:
    """Sum along the last axis, keeping it."""

    def by_product(x: Array) -> Array:
        ones = jnp.ones((x.shape[-1], _ONES), x.dtype)
        return jnp.dot(x.reshape(-1, x.shape[-1]), ones)[:, :1].reshape(*x.shape[:-1], 1)

    return lax.platform_dependent(x, cpu=by_product, default=lambda x: x.sum(-1, keepdims=True))


def rms_norm(x: Float[Array, "*rows dim"], weight: Float[Array, " dim"], epsilon: float) -> Float[Array, "*rows dim"]:
    """Root mean square normalisation (arXiv 1910.07467) in float32."""
    x32 = x.astype(jnp.float32)
    scaled = x32 * lax.rsqrt(row_sum(x32 * x32) / x.shape[-1] + epsilon)
    return (scaled * weight.astype(jnp.float32)).astype(x.dtype)
