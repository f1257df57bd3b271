"""The head in plain XLA: some of its rows are read at a time, so that neither it nor all logits are copied."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_kernels.storage import from_bits


def chunk_logits(
    hidden: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"], chunk: int, index: Int32[Array, ""]
) -> tuple[Int32[Array, ""], Float32[Array, "rows values"]]:
    """Return the first token of a chunk of the vocabulary, and the logits of `chunk` tokens from there on.

    The last chunk reaches back: of any chunk, tokens before `index * chunk` are also an earlier one's.
    """
    start = jnp.minimum(index * chunk, len(weight) - chunk)
    part = from_bits(lax.dynamic_slice_in_dim(weight, start, chunk))
    return start, lax.dot_general(hidden, part, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def head_logits(
    hidden: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"], most: int
) -> Float32[Array, "rows vocab"]:
    """Multiply rows with the whole head as it is stored, at most `most` of its rows at a time."""
    vocab = len(weight)
    chunk = min(most, vocab)

    def fill(index: Array, logits: Array) -> Array:
        start, new = chunk_logits(hidden, weight, chunk, index)  # what is repeated is written again
        return lax.dynamic_update_slice_in_dim(logits, new, start, 1)

    return lax.fori_loop(0, -(-vocab // chunk), fill, jnp.zeros((len(hidden), vocab), jnp.float32))
