"""Products of activations with weights as the models use them: operands of one type, sums in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mis_kernels.packed import PackedWeight, packed_linear

Weight = Array | PackedWeight
"""One layer's weight: an array whose dimensions, flattened, are those of a product, or the same packed."""


def linear(
    x: Float[Array, "rows in"], weight: Weight, residual: Float[Array, "rows out"] | None = None
) -> Float[Array, "rows out"]:
    """Multiply, accumulate in float32, add a residual if there is one, and return the type of `x`."""
    if isinstance(weight, PackedWeight):
        return packed_linear(x, weight, residual)
    product = _product(x, weight).astype(x.dtype)
    return product if residual is None else residual + product


def gated_linear(x: Float[Array, "rows in"], gate_up: Weight) -> Float[Array, "rows out"]:
    """Multiply with a gate and with what it gates, and return silu(gate) * up, computed in float32.

    Source: SwiGLU, arXiv 2002.05202, with the SiLU that the model families use.

    Args:
        x: Activations.
        gate_up: `[in, 2, out]`, gate first.
    """
    if isinstance(gate_up, PackedWeight):
        return packed_linear(x, gate_up)
    gate, up = jnp.split(_product(x, gate_up), 2, axis=-1)
    return (jax.nn.silu(gate) * up).astype(x.dtype)


def _product(x: Array, weight: Array) -> Array:
    return jnp.dot(x, weight.reshape(x.shape[1], -1), preferred_element_type=jnp.float32)
