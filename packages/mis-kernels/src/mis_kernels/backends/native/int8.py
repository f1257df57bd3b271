"""Products in int8 in C++: an instruction takes four summands of 16 columns (AVX-512 VNNI, ARM), or a tile (AMX).

XLA:CPU multiplies int8 no faster than float32. Here weights lie in the order in which the instruction takes them,
sixteen of which fill a tile register, and a layer of a stack is an index, not a copy.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int32

from mis_kernels.activations import Gate
from mis_kernels.backends.native import library
from mis_kernels.backends.native.packed import TILE_COLUMNS, gate_number, tile_specs, tiled
from mis_kernels.quantized import QuantizedRows, QuantizedWeight
from mis_kernels.storage import to_bits
from mis_kernels.weights import FoldedNorm

_DEPTH, _TILE_DEPTH = 4, 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiledWeight(QuantizedWeight):
    """A stack of quantised weights, or of pairs of them, in tiles: `values` are `[*stack, out / 16, in / 4, 64]`.

    Attributes:
        matrix: Which weight of the stack this is, those of pairs one after the other; of a pair its first. None: all.
    """

    matrix: Any = None

    @property
    def is_pair(self) -> bool:
        """Whether each layer has two weights, a gate and what it gates."""
        return self.values.ndim == 5

    def __getitem__(self, key: int) -> Self:
        """Return one of a layer's pair."""
        return dataclasses.replace(self, matrix=self.matrix + key)

    def at_layer(self, layer: Int32[Array, ""]) -> Self:
        """Return one layer's weight or pair, without a copy."""
        return dataclasses.replace(self, matrix=layer * (2 if self.is_pair else 1))

    def partition(self, partition: PartitionSpec) -> Self:
        """Return the cuts of tiles and scales, where `[*stack, in, out]` is cut like `partition`."""
        values, scales = tile_specs(partition, self.values.ndim - 1)
        return dataclasses.replace(self, values=values, scales=scales)

    def operand(self, x: Array) -> QuantizedRows:
        """Quantise in one pass over the rows."""
        return quantize_rows(x, self.block)

    def product(self, rows: QuantizedRows, *, gate: Gate | None = None) -> Float32[Array, "rows out"]:
        """Multiply rows of `quantize_rows` with one weight, or, with a `gate`, with a pair: gate(x gate) * (x up).

        A row's bits depend on the row alone, whatever the number of rows.

        Raises:
            ValueError: this is a whole stack.
        """
        if self.matrix is None:
            raise ValueError("weight: choose a layer of the stack")
        out = jax.ShapeDtypeStruct((len(rows.values), self.scales.shape[-1]), jnp.float32)
        first = jnp.reshape(self.matrix, 1).astype(jnp.int32)
        call = jax.ffi.ffi_call("mis_int8_product", out)
        return call(rows.values, rows.scales, self.values, self.scales, first, gate=gate_number(gate))

    def gated_linear(
        self, x: Array, bias: Array | None = None, norm: FoldedNorm | None = None, gate: Gate = "silu"
    ) -> Array:
        """Gate products before they leave the cache, if nothing comes in between."""
        if bias is None and norm is None:
            return self.product(self.operand(x), gate=gate).astype(x.dtype)
        return super().gated_linear(x, bias, norm, gate)


def fits(depth: int, columns: int) -> bool:
    """Whether weights with so many summands and columns on each device can be tiled: tiles and vectors are whole."""
    return depth % TILE_COLUMNS == columns % TILE_COLUMNS == 0


def pack(weight: QuantizedWeight, depth: int, columns: int) -> QuantizedWeight:
    """Tile a stack in host memory if it `fits`."""
    return tile(weight) if fits(depth, columns) else weight


def tile(weight: QuantizedWeight) -> TiledWeight:
    """Reorder a stack of weights in host memory: by 16 columns, then by 4 summands."""
    return TiledWeight(tiled(weight.values, _DEPTH, together=_DEPTH), weight.scales, weight.block)


def quantize_rows(x: Float[Array, "rows in"], block: int) -> QuantizedRows:
    """Quantise rows as `mis_kernels.quantized.quantize_rows` does.

    Tile registers take int8, in whole tiles of 64. Vectors take uint8: their integers have 128 added.

    Args:
        x: bfloat16 or float32; a multiple of 16 elements in a row.
        block: Of the weight that they are multiplied with: 1, or 16 to 64.
    """
    kind = jnp.int8 if library.has_int8_tiles() and x.shape[1] % _TILE_DEPTH == 0 else jnp.uint8
    rows = jax.ShapeDtypeStruct(x.shape, kind), jax.ShapeDtypeStruct((len(x), 1), jnp.float32)
    return QuantizedRows(*jax.ffi.ffi_call("mis_quantize_rows", rows)(to_bits(x), block=np.int64(block)))
