"""Functions of single numbers that models choose among: what gates a product, and what keeps logits within bounds."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

Gate = Literal["silu", "gelu_tanh"]
"""Which function a gate goes through: SiLU, or GELU by its approximation with tanh."""


def activated(values: Float[Array, "rows out"], gate: Gate) -> Float[Array, "rows out"]:
    """Return SiLU or GELU of each number, in the type of the numbers.

    GELU is `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, what PyTorch calls `approximate="tanh"`.

    Source: arXiv 1606.08415, sections 2 and 4.
    """
    return jax.nn.silu(values) if gate == "silu" else jax.nn.gelu(values, approximate=True)


def capped(values: Float32[Array, "*rows"], cap: float | None) -> Float32[Array, "*rows"]:
    """Return `cap * tanh(values / cap)`, between minus and plus the cap; the values themselves where there is no cap.

    Mask with minus infinity afterwards, since the cap makes a finite number of it.

    Source: the soft caps of Gemma 2, arXiv 2408.00118, section 2.
    """
    return values if cap is None else cap * jnp.tanh(values / cap)


def logits_of(products: Float32[Array, "*rows"], scale: float, cap: float | None) -> Float32[Array, "*rows"]:
    """Return products of queries and keys times the scale, `capped`, with one multiplication in front of the tanh."""
    return products * scale if cap is None else cap * jnp.tanh(products * (scale / cap))
