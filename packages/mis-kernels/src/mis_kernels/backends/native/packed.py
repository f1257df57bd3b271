"""Products with weights that are packed once, when a model is loaded, in bfloat16 or float32.

XLA:CPU reorders a weight for its matrix unit in every call, writes sums to memory and reads them back for
what follows. Packed weights lie in the order in which tile registers take them, stay in place (a layer of a stack is
an index, not a copy), and sums are rounded, or gated and rounded, before they leave the cache.
"""

import dataclasses
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int32, Shaped

from mis_kernels.activations import Gate
from mis_kernels.backends.native import library
from mis_kernels.storage import from_bits, to_bits
from mis_kernels.weights import FoldedNorm, Weight

TILE_COLUMNS, _TILE_DEPTH = 16, 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedWeight(Weight):
    """A stack of weights `[in, out]`, or of pairs of such weights, in tiles.

    Attributes:
        tiles: Bits of bfloat16, or float32, `[layers, out / 16, in / 32, 512]`, or with the pair as second axis; in a
            tree of partitions or shapes, what stands for that array.
        layer: Which layer of the stack this weight is; None: all of them.
    """

    tiles: Any
    layer: Any = None

    def at_layer(self, layer: Int32[Array, ""]) -> "PackedWeight":
        """Return one layer's weight, without a copy."""
        return dataclasses.replace(self, layer=layer)

    def partition(self, partition: PartitionSpec) -> "PackedWeight":
        """Return the cuts of the tiles, in a tree like this one, where `[*stack, in, out]` is cut like `partition`."""
        return PackedWeight(tile_specs(partition, self.tiles.ndim - 1)[0])

    @property
    def is_pair(self) -> bool:
        """Whether each layer has two weights, a gate and what it gates."""
        return self.tiles.ndim == 5

    def linear(self, x: Array, residual: Array | None = None, norm: FoldedNorm | None = None) -> Array:
        """Add the residual before rounding."""
        assert norm is None, "norms are not folded here"
        return self.product(x, residual)

    def gated_linear(
        self, x: Array, bias: Array | None = None, norm: FoldedNorm | None = None, gate: Gate = "silu"
    ) -> Array:
        """Gate products before they leave the cache."""
        assert bias is None, "packed weights are gated before a bias could be added"
        assert norm is None, "norms are not folded here"
        return self.product(x, gate=gate)

    def product(
        self, x: Float[Array, "rows in"], residual: Float[Array, "rows out"] | None = None, gate: Gate = "silu"
    ) -> Float[Array, "rows out"]:
        """Multiply with a layer's weight and round to its type; of a pair, return gate(x gate) * (x up), rounded once.

        A row's bits depend on the row alone, whatever the number of rows.

        Args:
            x: Of the weight's type.
            residual: Likewise, added before rounding.
            gate: What the gate of a pair goes through.

        Raises:
            ValueError: this is a whole stack.
        """
        if self.layer is None:
            raise ValueError("weight: choose a layer of the stack")
        layer = jnp.reshape(self.layer, 1).astype(jnp.int32)
        out = jax.ShapeDtypeStruct((len(x), self.tiles.shape[-3] * TILE_COLUMNS), self.tiles.dtype)
        added = jnp.zeros((0, 0), out.dtype) if residual is None else to_bits(residual)
        number = gate_number(gate if self.is_pair else None)
        if out.dtype == jnp.float32:
            return jax.ffi.ffi_call("mis_float32_packed_linear", out)(x, self.tiles, layer, added, gate=number)
        call, has_tiles = jax.ffi.ffi_call("mis_packed_linear", out), np.bool_(library.has_tiles())
        return from_bits(call(to_bits(x), self.tiles, layer, added, gate=number, has_tiles=has_tiles))


def gate_number(gate: Gate | None) -> np.int32:
    """Return the number by which the library knows a gate, or none (`Gate` of `native/vectors.h`)."""
    return np.int32(0 if gate is None else 1 + get_args(Gate).index(gate))


def fits(*dimensions: int) -> bool:
    """Whether weights with these dimensions can be packed: tiles are whole."""
    return all(size % _TILE_DEPTH == 0 for size in dimensions)


def pack(weight: Shaped[np.ndarray, "*stack in out"]) -> Shaped[np.ndarray, "*stack out_tiles in_tiles 512"]:
    """Reorder weights, on the host: by 16 columns, then by 32 summands; of bfloat16, pairs of summands together.

    Args:
        weight: Bits of bfloat16, or float32. Both dimensions are multiples of 32.
    """
    return tiled(weight, _TILE_DEPTH, together=1 if weight.dtype == np.float32 else 2)


def pack_stack(weight: Shaped[np.ndarray, "*stack in out"]) -> PackedWeight:
    """Pack a stack over layers, of bits of bfloat16 or of float32, each layer in its own memory: it is overwritten."""
    tiles = pack(weight[:0]).shape[1:]
    for layer in weight:
        layer[...] = pack(layer).reshape(layer.shape)
    return PackedWeight(weight.reshape(len(weight), *tiles))


def tiled(
    weight: Shaped[np.ndarray, "*stack in out"], depth: int, together: int
) -> Shaped[np.ndarray, "*stack out_tiles in_tiles values"]:
    """Reorder a stack by 16 columns, then by `depth` summands, of which some stay together."""
    *stack, rows, columns = weight.shape
    tiles = (columns // TILE_COLUMNS, rows // depth, TILE_COLUMNS * depth)
    parts = weight.reshape(*stack, tiles[1], depth // together, together, tiles[0], TILE_COLUMNS)
    order = (*range(len(stack)), *(len(stack) + axis for axis in (3, 0, 1, 4, 2)))
    return np.ascontiguousarray(parts.transpose(order)).reshape(*stack, *tiles)


def tile_specs(partition: PartitionSpec, ndim: int) -> tuple[PartitionSpec, PartitionSpec]:
    """Return how the tiles of a stack `[*stack, in, out]` that is cut like `partition` are cut, and its columns."""
    *stack, depth, columns = (*partition, *[None] * (ndim - len(partition)))
    return PartitionSpec(*stack, columns, depth), PartitionSpec(*stack, columns)
