"""Logits of a whole vocabulary on x86-64 CPUs with AVX-512 and its products in bfloat16: the head, read once.

XLA:CPU copies the head into another order in every call. Here it stays as it is stored, `[vocab, embed]`, which is how
the first layer reads it where both are the same array.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Shaped

from mis_kernels.storage import to_bits

_STEP = 32  # summands that the instruction takes


def fits(embed: int) -> bool:
    """Whether rows have whole vectors of summands."""
    return embed % _STEP == 0


def logits(x: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"]) -> Float32[Array, "rows vocab"]:
    """Multiply each row with each row of the head.

    A logit's bits depend on the two rows alone, whatever the number of rows.

    Args:
        x: bfloat16.
        weight: bfloat16, or its bits.
    """
    out = jax.ShapeDtypeStruct((len(x), len(weight)), jnp.float32)
    return jax.ffi.ffi_call("mis_logits", out)(to_bits(x), to_bits(weight))
