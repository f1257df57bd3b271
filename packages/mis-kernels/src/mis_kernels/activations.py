"""Functions of single numbers that models choose among: what gates a product, and what keeps logits within bounds."""

from typing import Literal

import jax
from jaxtyping import Array, Float

Gate = Literal["silu", "gelu_tanh"]
"""Which function a gate goes through: SiLU, or GELU by its approximation with tanh."""


def activated(values: Float[Array, "rows out"], gate: Gate) -> Float[Array, "rows out"]:
    """Return SiLU or GELU of each number, in the type of the numbers.

    Source: GELU and SiLU, arXiv 1606.08415, sections 2 and 4; GELU is `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`,
    what PyTorch calls `approximate="tanh"`.
    """
    return jax.nn.silu(values) if gate == "silu" else jax.nn.gelu(values, approximate=True)
