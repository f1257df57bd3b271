"""The head in plain XLA: some of its rows are read at a time, so that neither it nor all logits are copied."""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_kernels.storage import from_bits


class HeadChunks(NamedTuple):
    """A head in chunks of one size, of which the last reaches back and has rows of the one before once more.

    Attributes:
        weight: The head as it is stored, `[vocab, embed]`.
        size: Rows of a chunk, at most all.
    """

    weight: Array
    size: int

    @classmethod
    def of(cls, weight: Shaped[Array, "vocab embed"], most: int) -> Self:
        """Cut a head into chunks of `most` rows, or one of all."""
        return cls(weight, min(most, len(weight)))

    @property
    def num_chunks(self) -> int:
        """How many there are."""
        return -(-len(self.weight) // self.size)

    def logits(
        self, hidden: Float[Array, "rows embed"], index: Int32[Array, ""]
    ) -> tuple[Int32[Array, ""], Float32[Array, "rows vocab"]]:
        """Return the token that a chunk begins with, and its logits; tokens before `index * size` are repeated."""
        start = jnp.minimum(index * self.size, len(self.weight) - self.size)
        part = from_bits(lax.dynamic_slice_in_dim(self.weight, start, self.size))
        return start, lax.dot_general(hidden, part, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def head_logits(
    hidden: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"], most: int
) -> Float32[Array, "rows vocab"]:
    """Multiply rows with the whole head as it is stored, `most` of its rows at a time."""
    chunks = HeadChunks.of(weight, most)

    def fill(index: Array, logits: Array) -> Array:
        start, new = chunks.logits(hidden, index)  # what is repeated is written again
        return lax.dynamic_update_slice_in_dim(logits, new, start, 1)

    return lax.fori_loop(0, chunks.num_chunks, fill, jnp.zeros((len(hidden), len(weight)), jnp.float32))
