"""Weights of products: each class says how it is stored, how it is cut over devices, and how it multiplies.

A kind of weight is one class, which a backend's `pack` or `pack_quantized` makes. A plain one is stored as its array
alone. The types of a product's other operands are here, too.
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int32

from mis_kernels.activations import Gate, activated
from mis_kernels.heads import HeadShape
from mis_kernels.storage import from_bits
from mis_kernels.target import platform

QueriesKeysValues = tuple[
    Float[Array, "tokens heads head_dim"],
    Float[Array, "tokens kv_heads head_dim"],
    Float[Array, "tokens kv_heads head_dim"],
]
"""What attention takes of new tokens."""

Arrays = TypeVar("Arrays")
"""An array, or a tree of arrays."""

StoredWeight = Any
"""A parameter that products are made with, as it is stored: a `Weight`, or an array `[*stack, in, out]`."""


class FoldedNorm(NamedTuple):
    """A root mean square norm whose weights are in the product behind it: each row's product lacks a factor.

    Attributes:
        squares: Sums of the rows' squares.
        epsilon: Added to the mean square.
    """

    squares: Float32[Array, "rows 1"]
    epsilon: float

    def factor(self, width: int) -> Float32[Array, "rows 1"]:
        """Return what the products of rows of so many elements are multiplied with."""
        return lax.rsqrt(self.squares / width + self.epsilon)


class HeadRotations(NamedTuple):
    """What turns heads by their positions and normalises them.

    Attributes:
        cos: Cosines of `mis_kernels.rotary_tables`.
        sin: Sines of them.
        q_norm: Weight of the queries' norm, or None: no norm.
        k_norm: Weight of the keys' norm, given together with `q_norm`.
        epsilon: Added to the mean square.
    """

    cos: Float32[Array, "tokens head_dim"]
    sin: Float32[Array, "tokens head_dim"]
    q_norm: Float[Array, " head_dim"] | None
    k_norm: Float[Array, " head_dim"] | None
    epsilon: float


class Weight(ABC):
    """A weight `[in, out]`, a pair of such weights, or a stack of one or the other over layers: a tree of arrays.

    Only one layer's weight or pair multiplies.
    """

    @abstractmethod
    def at_layer(self, layer: Int32[Array, ""]) -> "Weight":
        """Return one layer's part of a stack."""

    @abstractmethod
    def partition(self, partition: PartitionSpec) -> Any:
        """Return how what is stored is cut, a tree like it, if the plain weight is cut like `partition`."""

    @abstractmethod
    def linear(
        self,
        x: Float[Array, "rows in"],
        residual: Float[Array, "rows out"] | None = None,
        norm: FoldedNorm | None = None,
    ) -> Float[Array, "rows out"]:
        """Multiply, accumulate in float32, and return the type of `x`.

        Args:
            x: Activations.
            residual: Is added to the rounded product; to that in float32 where the product is not written by itself.
            norm: In front of the product; only of backends that fold norms.
        """

    @abstractmethod
    def gated_linear(
        self,
        x: Float[Array, "rows in"],
        bias: Float[Array, "2 out"] | None = None,
        norm: FoldedNorm | None = None,
        gate: Gate = "silu",
    ) -> Float[Array, "rows out"]:
        """Multiply with a pair, a gate and what it gates; return `gate(x gate) * (x up)`, in float32, rounded once.

        Source: SwiGLU and GEGLU, arXiv 2002.05202.

        Args:
            x: Activations.
            bias: Of both products; not with packed weights (`Backend.packs`).
            norm: In front of both products; only of backends that fold norms.
            gate: What the gate goes through.
        """

    def project(
        self,
        x: Float[Array, "tokens in"],
        heads: HeadShape,
        rotations: HeadRotations,
        bias: Float[Array, "kv_heads group_plus_two head_dim"] | None,
        norm: FoldedNorm | None,
    ) -> QueriesKeysValues | None:
        """Return what `operations.project` does, in one pass; None: the product is best made by itself."""
        return None


class UnfusedWeight(Weight):
    """A weight whose products are written in float32, and XLA adds, gates and rounds them."""

    @abstractmethod
    def __getitem__(self, key: Any) -> "UnfusedWeight":
        """Return one of a pair."""

    def operand(self, x: Float[Array, "rows in"]) -> Any:
        """Return rows as all products with such a weight take them."""
        return x

    @abstractmethod
    def product(self, rows: Any) -> Float32[Array, "rows out"]:
        """Multiply rows of `operand` with one weight."""

    def linear(self, x: Array, residual: Array | None = None, norm: FoldedNorm | None = None) -> Array:
        """Add the residual to the rounded product."""
        factor = None if norm is None else norm.factor(x.shape[1])
        product = self._scaled(self.operand(x), factor).astype(x.dtype)
        return product if residual is None else residual + product

    def gated_linear(
        self, x: Array, bias: Array | None = None, norm: FoldedNorm | None = None, gate: Gate = "silu"
    ) -> Array:
        """Gate two products of the same rows."""
        rows, factor = self.operand(x), None if norm is None else norm.factor(x.shape[1])
        gates, up = self[0]._scaled(rows, factor), self[1]._scaled(rows, factor)
        if bias is not None:
            gates, up = gates + bias[0], up + bias[1]
        return (activated(gates, gate) * up).astype(x.dtype)

    def _scaled(self, rows: Any, factor: Array | None) -> Array:
        product = self.product(rows)
        return product if factor is None else product * factor


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PlainWeight(UnfusedWeight):
    """A weight as its array, in floats where it multiplies; it is stored without this class, see `weight_of`.

    Attributes:
        values: `[*stack, in, out]`, floats or their bits (see `mis_kernels.storage`).
    """

    values: Any

    def __getitem__(self, key: Any) -> Self:
        """Return one of a pair."""
        return dataclasses.replace(self, values=self.values[key])

    def at_layer(self, layer: Int32[Array, ""]) -> Self:
        """Copy one layer."""
        return dataclasses.replace(self, values=layer_of(self.values, layer))

    def partition(self, partition: PartitionSpec) -> PartitionSpec:
        """Return the partition itself."""
        return partition

    def product(self, rows: Float[Array, "rows in"]) -> Float32[Array, "rows out"]:
        """Multiply floats."""
        return jnp.dot(rows, self.values, preferred_element_type=jnp.float32)


def weight_of(stored: StoredWeight) -> Weight:
    """Return what multiplies and is cut: a stored weight itself, or a plain one of a stored array."""
    return stored if isinstance(stored, Weight) else PlainWeight(stored)


def layer_of(stack: Array, layer: Int32[Array, ""]) -> Array:
    """Return an element of the first axis; floats if they are stored as bits."""
    return from_bits(lax.dynamic_index_in_dim(stack, layer, 0, keepdims=False))


def materialised(x: Arrays) -> Arrays:
    """Keep XLA from computing `x` again in every tile of every product that reads it; on CPUs it does not."""
    return x if platform() == "cpu" else lax.optimization_barrier(x)
