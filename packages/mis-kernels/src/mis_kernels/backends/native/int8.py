"""Products in int8 in C++: an instruction takes four summands of 16 columns (AVX-512 VNNI, ARM), or a tile (AMX).

XLA:CPU multiplies int8 no faster than float32. Here weights lie in the order in which the instruction takes them,
sixteen of which fill a tile register, and a layer of a stack is an index, not a copy. Rows are quantised, and products
rounded, gated and added, in the call that multiplies.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int32

from mis_kernels.activations import Gate
from mis_kernels.backends.native import library
from mis_kernels.backends.native.packed import TILE_COLUMNS, gate_number, tile_specs, tiled
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.storage import from_bits, to_bits
from mis_kernels.weights import FoldedNorm, Weight

_DEPTH, _TILE_DEPTH = 4, 64
_OFFSET = np.uint8(128)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiledWeight(Weight):
    """A stack of quantised weights `[in, out]`, or of pairs of such weights, in tiles.

    Attributes:
        values: `[layers, out / 16, in / 4, 64]`, or with the pair as second axis: int8 for tile registers, which take
            these as they are; uint8 for vectors, which take unsigned weights: 128 is added. In a tree of partitions or
            shapes, what stands for that array.
        scales: float32 `[layers, out]`, or with the pair as second axis; likewise.
        block: Summands that are turned together, a power of 2 from 16; 1: none are.
        layer: Which layer of the stack this weight is; None: all of them.
    """

    values: Any
    scales: Any
    block: int = dataclasses.field(default=1, metadata={"static": True})
    layer: Any = None

    def at_layer(self, layer: Int32[Array, ""]) -> "TiledWeight":
        """Return one layer's weight or pair, without a copy."""
        return dataclasses.replace(self, layer=layer)

    def partition(self, partition: PartitionSpec) -> "TiledWeight":
        """Return the cuts of tiles and scales, in a tree like this one, where `[*stack, in, out]` is cut so."""
        values, scales = tile_specs(partition, self.values.ndim - 1)
        return dataclasses.replace(self, values=values, scales=scales)

    @property
    def is_pair(self) -> bool:
        """Whether each layer has two weights, a gate and what it gates."""
        return self.values.ndim == 5

    def linear(self, x: Array, residual: Array | None = None, norm: FoldedNorm | None = None) -> Array:
        """Add the residual to the rounded product, in the same call."""
        assert norm is None, "norms are not folded here"
        return self.product(x, residual)

    def gated_linear(
        self, x: Array, bias: Array | None = None, norm: FoldedNorm | None = None, gate: Gate = "silu"
    ) -> Array:
        """Gate products before they leave the cache."""
        assert norm is None, "norms are not folded here"
        return self.product(x, bias=bias, gate=gate)

    def product(
        self,
        x: Float[Array, "rows in"],
        residual: Float[Array, "rows out"] | None = None,
        bias: Float[Array, "2 out"] | None = None,
        gate: Gate = "silu",
    ) -> Float[Array, "rows out"]:
        """Quantise rows, multiply and round to their type; of a pair, return gate(x gate) * (x up), rounded once.

        Rows have the integers of `mis_kernels.quantized.quantize_rows`. A row's bits depend on the row alone, whatever
        the number of rows.

        Args:
            x: bfloat16 or float32.
            residual: Likewise, added to the rounded product.
            bias: Of a pair, added before gating.
            gate: What the gate of a pair goes through.

        Raises:
            ValueError: this is a whole stack.
        """
        if self.layer is None:
            raise ValueError("weight: choose a layer of the stack")
        bits, rows = to_bits(x), len(x)
        added = jnp.zeros((0, 0), bits.dtype) if residual is None else to_bits(residual)
        biases = jnp.zeros((0, 0)) if bias is None else bias.astype(jnp.float32)
        out = jax.ShapeDtypeStruct((rows, self.scales.shape[-1]), bits.dtype)
        # Rows in int8, their scales and sums: memory that the call needs and nobody reads afterwards.
        needed = [jax.ShapeDtypeStruct(x.shape, jnp.int8)]
        needed += [jax.ShapeDtypeStruct((rows,), dtype) for dtype in (jnp.float32, jnp.int32)]
        call = jax.ffi.ffi_call("mis_int8_product", [out, *needed])
        layer, number = jnp.reshape(self.layer, 1).astype(jnp.int32), gate_number(gate if self.is_pair else None)
        operands = bits, self.values, self.scales, layer, biases, added
        return from_bits(call(*operands, gate=number, block=np.int64(self.block))[0])


def fits(depth: int, columns: int) -> bool:
    """Whether weights with so many summands and columns on each device can be tiled: tiles and vectors are whole."""
    return depth % TILE_COLUMNS == columns % TILE_COLUMNS == 0


def pack(weight: QuantizedWeight, depth: int, columns: int) -> Weight:
    """Tile a stack in host memory if it `fits`, with its summands and columns on each device."""
    return tile(weight, depth) if fits(depth, columns) else weight


def tile(weight: QuantizedWeight, depth: int) -> TiledWeight:
    """Reorder a stack of weights in host memory by 16 columns, then by 4 summands, as this CPU multiplies them.

    Args:
        weight: The stack, of weights or of pairs.
        depth: Summands on each device: tile registers multiply 64 at a time.
    """
    tiles = tiled(weight.values, _DEPTH, together=_DEPTH)
    in_registers = library.has_int8_tiles() and depth % _TILE_DEPTH == 0
    return TiledWeight(tiles if in_registers else tiles.view(np.uint8) ^ _OFFSET, weight.scales, weight.block)
