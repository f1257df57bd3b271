"""Recurrent layers: what they keep of a sequence, and which rows of a step go on from which state.

A layer with a gated delta rule keeps no keys and values. Of each sequence it keeps a *recurrent state* of fixed size,
and the last inputs of a short convolution. States lie in *slots*. A step's rows are computed in chunks. Each starts
from a slot, from nothing, or from the chunk before it in the list, and may leave its state in a slot. So a query's
state is computed once, and every item starts from its slot.

`mis_kernels.gated_delta` is the operation.
"""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from mis_kernels.segments import NOWHERE, IntArray

CHUNK = 64
"""Most rows of a chunk."""

CARRIED = -1
"""In place of a slot: a chunk starts from the state that the chunk before it in the list left."""

EMPTY = -2
"""In place of a slot: a chunk starts from zeros, as the first of a sequence does."""


class RecurrentShape(NamedTuple):
    """One recurrent layer, on one device.

    Attributes:
        key_heads: Heads of queries and keys.
        value_heads: Heads of values and of the state, a multiple of `key_heads`; neighbours share a key head.
        key_dim: Elements of a query or key of one head.
        value_dim: Elements of a value of one head.
        taps: Rows that the convolution sums, a row's own the last.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        """Inputs of a row: the queries of all heads, then the keys, then the values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def on_device(self, devices: int) -> Self:
        """Return the part of one of `devices` that the layer is cut over: a share of the key heads, with their values.

        Raises:
            ValueError: the devices do not divide the key heads.
        """
        if self.key_heads % devices:
            raise ValueError(f"{devices} devices do not divide {self.key_heads} key heads")
        return self._replace(key_heads=self.key_heads // devices, value_heads=self.value_heads // devices)


class RecurrentStates(NamedTuple):
    """Slots of all recurrent layers, one layer after the other.

    Attributes:
        memory: What each value head has learnt: the matrix that a query multiplies.
        inputs: The last inputs of the convolution, oldest first.
    """

    memory: Float32[Array, "slots value_heads key_dim value_dim"]
    inputs: Float32[Array, "slots taps_before channels"]

    @classmethod
    def zeros(cls, slots: int, shape: RecurrentShape) -> Self:
        """Return so many slots, empty."""
        return cls(
            jnp.zeros((slots, shape.value_heads, shape.key_dim, shape.value_dim), jnp.float32),
            jnp.zeros((slots, shape.taps - 1, shape.channels), jnp.float32),
        )


class Chunks(NamedTuple):
    """Rows of a step in the order in which they are computed; lists of fixed length, NumPy or JAX.

    No row is in two chunks. Where a chunk's rows lie does not matter, nor does their order.

    Attributes:
        rows: First row of each chunk in the packed array.
        lens: Rows of each, 1 to `CHUNK`.
        reads: Slot whose state each starts from, or `CARRIED`, or `EMPTY`.
        writes: Slot that the state after it goes to; `NOWHERE` or any number past the last slot: none. A later chunk
            of the same list may read it.
        count: How many chunks there are; what the lists hold after them means nothing.
    """

    rows: Int32[IntArray, " chunks"]
    lens: Int32[IntArray, " chunks"]
    reads: Int32[IntArray, " chunks"]
    writes: Int32[IntArray, " chunks"]
    count: Int32[IntArray, ""]

    def shift(self, first_slot: Array | int) -> Self:
        """Return the same chunks on slots that begin `first_slot` slots later, where those of a layer lie."""
        reads, writes = jnp.asarray(self.reads), jnp.asarray(self.writes)
        return self._replace(
            reads=jnp.where(reads < 0, reads, reads + first_slot),
            writes=jnp.where(writes >= NOWHERE, writes, writes + first_slot),
        )
