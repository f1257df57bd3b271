"""Products in int8: a scale for each output channel of a weight, and one for each row of activations (W8A8).

Scales are symmetric: the largest magnitude of a channel or a row becomes 127. Integers are summed exactly, so a row's
bits depend on the row and the weight alone. Source: the vector-wise products of LLM.int8() (arXiv 2208.07339, section
3.1), called per-token and per-channel in SmoothQuant (arXiv 2211.10438); nothing is kept in a wider type here.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int8, Int32

LARGEST = 127
"""Magnitude of the largest integer; -128 is left out, so that ranges are symmetric."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuantizedWeight:
    """A weight, or a stack of weights: `values * scales`, scales along the channels.

    Attributes:
        values: int8 `[*stack, in, out]`; in a tree of partitions or shapes, what stands for that array.
        scales: float32 `[*stack, out]`, likewise.
    """

    values: Any
    scales: Any

    def __getitem__(self, key: Any) -> Self:
        """Return a part of the stack; `[...]` is all of it, as for arrays."""
        return jax.tree.map(lambda each: each[key], self)

    def at_layer(self, layer: Int32[Array, ""]) -> Self:
        """Return one element of the stack's first axis."""
        return jax.tree.map(lambda each: lax.dynamic_index_in_dim(each, layer, 0, keepdims=False), self)

    def partition(self, partition: PartitionSpec) -> Self:
        """Return the cuts of both arrays, in a tree like this one, where the weight is cut like `partition`."""
        *stack, _, columns = (*partition, *[None] * (self.values.ndim - len(partition)))
        return dataclasses.replace(self, values=partition, scales=PartitionSpec(*stack, columns))

    def product(self, rows: Int8[Array, "rows in"], scales: Float32[Array, "rows 1"]) -> Float32[Array, "rows out"]:
        """Multiply quantised rows with one weight; the sums of integers are exact up to 133,000 of them."""
        sums = jnp.dot(rows, self.values, preferred_element_type=jnp.int32)
        return sums.astype(jnp.float32) * scales * self.scales


def quantize(weight: Float[np.ndarray, "*stack in out"]) -> QuantizedWeight:
    """Quantise weights in host memory, a channel of zeros with the scale 0.

    Args:
        weight: bfloat16 or float32, finite.
    """
    *stack, _, columns = weight.shape
    values, scales = np.empty(weight.shape, np.int8), np.empty((*stack, columns), np.float32)
    for index in np.ndindex(*stack):  # one by one, so that no wider copy of a stack is made
        wide = weight[index].astype(np.float32)
        largest = np.abs(wide).max(axis=0, initial=0)
        values[index] = np.rint(wide * (LARGEST / np.where(largest > 0, largest, np.inf)))
        scales[index] = largest / LARGEST
    return QuantizedWeight(values, scales)


def quantize_rows(x: Float[Array, "rows in"]) -> tuple[Int8[Array, "rows in"], Float32[Array, "rows 1"]]:
    """Quantise each row of activations by itself; return the integers, and the scales that they were divided by.

    A row of zeros has the scale 0.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.abs(wide).max(axis=1, keepdims=True)
    inverse = LARGEST / jnp.where(largest > 0, largest, jnp.inf)
    return jnp.round(wide * inverse).astype(jnp.int8), largest / LARGEST
