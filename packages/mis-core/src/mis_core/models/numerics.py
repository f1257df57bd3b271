"""Products of activations with weights as the models use them: operands of one type, sums in float32."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from mis_kernels.backends.native import library as native
from mis_kernels.backends.native.packed import PackedWeight, packed_linear
from mis_kernels.target import platform

Weight = Array | PackedWeight
"""One layer's weight: an array of the dimensions of a product, `[in, out]`, or the same packed."""


def fastest_dtype() -> tuple[str, str]:
    """Return the type that products take least time in on this process's devices, and why, for people.

    Accelerators and the native library multiply bfloat16. XLA:CPU without that library is faster in float32.
    """
    if platform() != "cpu":
        return "bfloat16", f"{platform().upper()}s multiply it"
    lacking = native.why_not()
    if lacking is None:
        return "bfloat16", "the native library multiplies it"
    return "float32", f"bfloat16 would be slower here, since the native library is not in use: {lacking}"


def materialised(x: Array) -> Array:
    """Keep XLA from computing `x` again in every tile of every product that reads it, as it does on accelerators."""
    return x if platform() == "cpu" else lax.optimization_barrier(x)


def linear(
    x: Float[Array, "rows in"], weight: Weight, residual: Float[Array, "rows out"] | None = None
) -> Float[Array, "rows out"]:
    """Multiply, accumulate in float32, add a residual if there is one, and return the type of `x`."""
    if isinstance(weight, PackedWeight):
        return packed_linear(x, weight, residual)
    product = _product(x, weight).astype(x.dtype)
    return product if residual is None else residual + product


def gated_linear(
    x: Float[Array, "rows in"], gate_up: Weight, bias: Float[Array, "2 out"] | None = None
) -> Float[Array, "rows out"]:
    """Multiply with a gate and with what it gates, and return silu(gate) * up, computed in float32.

    Source: SwiGLU, arXiv 2002.05202, with the SiLU that the model families use.

    Args:
        x: Activations.
        gate_up: `[2, in, out]`, gate first; not packed where there is a bias.
        bias: Of both products.
    """
    if isinstance(gate_up, PackedWeight):
        assert bias is None, "packed weights are gated before a bias could be added"
        return packed_linear(x, gate_up)
    gate, up = _product(x, gate_up[0]), _product(x, gate_up[1])
    if bias is not None:
        gate, up = gate + bias[0], up + bias[1]
    return (jax.nn.silu(gate) * up).astype(x.dtype)


def _product(x: Array, weight: Array) -> Array:
    return jnp.dot(x, weight, preferred_element_type=jnp.float32)
