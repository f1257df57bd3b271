"""Products in int8: a scale for each output channel of a weight, and one for each row of activations (W8A8).

Scales are symmetric: the largest magnitude of a channel or a row becomes 127. Integers are summed exactly, so a row's
bits depend on the row and the weight alone. Source: the vector-wise products of LLM.int8() (arXiv 2208.07339, section
3.1), called per-token and per-channel in SmoothQuant (arXiv 2211.10438).

A few elements of most rows are far larger than the others, and would leave them few steps. So rows and weights are
turned first, by the same Hadamard matrix for each block of summands: the product stays, and an element that stands out
is shared by its block. Source: QuaRot (arXiv 2404.00456); blocks, unlike whole rows, can be cut over devices.
"""

import dataclasses
import math
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_kernels.weights import UnfusedWeight, layer_of, materialised

LARGEST = 127
"""Magnitude of the largest integer; -128 is left out, so that ranges are symmetric."""

LARGEST_BLOCK = 64
"""Most summands that are turned together; of 16 to 512, what moves scores least (docs/decisions/0017-int8.md)."""


class QuantizedRows(NamedTuple):
    """Rows of activations as products with quantised weights take them, `values * scales` if turned back.

    Attributes:
        values: int8 `[rows, in]`, or as a backend likes it best.
        scales: float32 `[rows, 1]`.
    """

    values: Shaped[Array, "rows in"]
    scales: Float32[Array, "rows 1"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuantizedWeight(UnfusedWeight):
    """A weight, or a stack of weights: `values * scales`, scales along the channels, for rows that are turned likewise.

    Attributes:
        values: int8 `[*stack, in, out]`; in a tree of partitions or shapes, what stands for that array.
        scales: float32 `[*stack, out]`, likewise.
        block: Summands that are turned together, a power of 2; 1: none are.
    """

    values: Any
    scales: Any
    block: int = dataclasses.field(default=1, metadata={"static": True})

    def __getitem__(self, key: Any) -> Self:
        """Return a part of the stack, or one of a pair; `[...]` is all of it, as for arrays."""
        return jax.tree.map(lambda each: each[key], self)

    def at_layer(self, layer: Int32[Array, ""]) -> Self:
        """Return one element of the stack's first axis."""
        return jax.tree.map(lambda each: layer_of(each, layer), self)

    def partition(self, partition: PartitionSpec) -> Self:
        """Return the cuts of both arrays, in a tree like this one, where the weight is cut like `partition`."""
        *stack, _, columns = (*partition, *[None] * (self.values.ndim - len(partition)))
        return dataclasses.replace(self, values=partition, scales=PartitionSpec(*stack, columns))

    def operand(self, x: Float[Array, "rows in"]) -> QuantizedRows:
        """Quantise each row by itself, once for all products."""
        return materialised(quantize_rows(x, self.block))

    def product(self, rows: QuantizedRows) -> Float32[Array, "rows out"]:
        """Multiply integers; their sums are exact up to 133,000 of them."""
        sums = jnp.dot(rows.values, self.values, preferred_element_type=jnp.int32)
        return sums.astype(jnp.float32) * rows.scales * self.scales


def block_of(depth: int) -> int:
    """Return how many summands are turned together where a device has `depth` of a weight: what divides them."""
    return math.gcd(depth, LARGEST_BLOCK)


def quantize(weight: Float[np.ndarray, "*stack in out"], block: int = 1) -> QuantizedWeight:
    """Quantise weights in host memory, a channel of zeros with the scale 0.

    Args:
        weight: bfloat16 or float32, finite.
        block: Summands to turn together, a power of 2 that divides `in`; 1: none.
    """
    *stack, depth, columns = weight.shape
    values, scales = np.empty(weight.shape, np.int8), np.empty((*stack, columns), np.float32)
    for index in np.ndindex(*stack):  # one by one, so that no wider copy of a stack is made
        blocks = weight[index].astype(np.float32).reshape(depth // block, block, columns)
        rotated = np.matmul(hadamard(block) / block, blocks).reshape(depth, columns)
        largest = np.abs(rotated).max(axis=0, initial=0)
        step = largest / LARGEST
        integers = np.rint(rotated / np.where(step > 0, step, np.inf))
        values[index] = np.clip(integers, -LARGEST, LARGEST)  # of the smallest floats a step is rounded itself
        scales[index] = step
    return QuantizedWeight(values, scales, block)


def quantize_rows(x: Float[Array, "rows in"], block: int = 1) -> QuantizedRows:
    """Quantise each row of activations by itself, a row of zeros with the scale 0, one with NaN or infinity with NaN.

    Args:
        x: bfloat16 or float32.
        block: Of the weight that they are multiplied with.
    """
    rotated = x.astype(jnp.float32)
    if block > 1:
        blocks = x.reshape(-1, block)
        rotation = jnp.asarray(hadamard(block), x.dtype)  # ones and minus ones, which every type holds
        rotated = jnp.dot(blocks, rotation, preferred_element_type=jnp.float32).reshape(x.shape)
    largest = jnp.abs(rotated).max(axis=1, keepdims=True)
    inverse = LARGEST / jnp.where(largest > 0, largest, jnp.inf)
    # XLA's maximum on CPUs ignores NaN, which no answer may.
    scales = jnp.where(jnp.isfinite(rotated).all(axis=1, keepdims=True), largest / LARGEST, jnp.nan)
    return QuantizedRows(jnp.round(rotated * inverse).astype(jnp.int8), scales)


def hadamard(size: int) -> Float32[np.ndarray, "in in"]:
    """Return Sylvester's matrix of ones and minus ones, symmetric: its square is `size` times the identity."""
    rotation = np.ones((1, 1), np.float32)
    while len(rotation) < size:
        rotation = np.block([[rotation, rotation], [rotation, -rotation]])
    return rotation
