"""The native library as a backend; what it does not take is computed by XLA."""

from typing import Any

import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float32, Shaped

from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.native import calls, int8, library, packed
from mis_kernels.backends.native import logits as head
from mis_kernels.backends.native.int8 import TiledWeight
from mis_kernels.backends.native.packed import PackedWeight, packed_linear
from mis_kernels.backends.protocol import FoldedNorm, Weight
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedRows, QuantizedWeight
from mis_kernels.segments import Segments


class _Int8Products(XlaCpuBackend):
    """Native products with quantised weights."""

    def pack_quantized(self, weight: QuantizedWeight, depth: int, columns: int) -> QuantizedWeight:
        """Reorder integers for the instruction, if it takes all of them."""
        return int8.tile(weight) if int8.fits(depth, columns) else weight

    def quantize_rows(self, x: Array, weight: QuantizedWeight) -> QuantizedRows:
        """Quantise in one pass over the rows."""
        return (
            int8.quantize_rows(x, weight.block) if isinstance(weight, TiledWeight) else super().quantize_rows(x, weight)
        )

    def quantized_product(self, rows: QuantizedRows, weight: QuantizedWeight) -> Array:
        """Multiply bytes, four summands at a time."""
        if isinstance(weight, TiledWeight):
            return int8.product(rows, weight)
        return super().quantized_product(rows, weight)

    def gated_linear(
        self, x: Array, gate_up: Weight, bias: Array | None = None, norm: FoldedNorm | None = None
    ) -> Array:
        """Gate products with tiled weights before they leave the cache."""
        if isinstance(gate_up, TiledWeight) and bias is None and norm is None:
            return int8.product(self.quantize_rows(x, gate_up), gate_up, gated=True).astype(x.dtype)
        return super().gated_linear(x, gate_up, bias, norm)


class NativeInt8Backend(_Int8Products):
    """Plain XLA, but for products with quantised weights."""

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits where the library was compiled and the CPU has what int8 needs."""
        return super().misfit(heads, dtype) or library.why_not_int8()


class NativeProductsBackend(_Int8Products):
    """Native products and norms; attention of heads that the native kernel does not take is XLA's."""

    name = "native_products"
    fastest_dtype = "bfloat16"

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits models in bfloat16 where the library was compiled and the CPU has what it needs."""
        wrong_type = None if dtype == "bfloat16" else f"computes bfloat16, not {dtype}"
        return super().misfit(heads, dtype) or wrong_type or library.why_not()

    def packs(self, *dimensions: int, gate_bias: bool) -> bool:
        """Tiles are whole; the packed product of gate and up has no place for their biases."""
        return not gate_bias and packed.fits(*dimensions)

    def pack(self, weight: Shaped[np.ndarray, "*stack in out"]) -> PackedWeight:
        """Reorder bits for tile registers, layer by layer."""
        return PackedWeight(np.stack([packed.pack(layer.view(np.uint16)) for layer in weight]))

    def partition(self, weight: Weight, partition: PartitionSpec) -> Any:
        """Return the same cuts through the tiles of a packed weight."""
        if isinstance(weight, PackedWeight):
            return weight.partition(partition)
        return super().partition(weight, partition)

    def at_layer(self, weight: Weight, layer: Array) -> Weight:
        """Point to a layer of a packed stack, without a copy."""
        return weight.at_layer(layer) if isinstance(weight, PackedWeight) else super().at_layer(weight, layer)

    def linear(self, x: Array, weight: Weight, residual: Array | None = None, norm: FoldedNorm | None = None) -> Array:
        """Multiply; with a packed weight, add the residual before rounding."""
        if not isinstance(weight, PackedWeight):
            return super().linear(x, weight, residual, norm)
        assert norm is None, "norms are not folded here"
        return packed_linear(x, weight, residual)

    def gated_linear(
        self, x: Array, gate_up: Weight, bias: Array | None = None, norm: FoldedNorm | None = None
    ) -> Array:
        """Gate packed products before they leave the cache."""
        if not isinstance(gate_up, PackedWeight):
            return super().gated_linear(x, gate_up, bias, norm)
        assert bias is None, "packed weights are gated before a bias could be added"
        assert norm is None, "norms are not folded here"
        return packed_linear(x, gate_up)

    def logits(self, hidden: Array, weight: Shaped[Array, "vocab embed"]) -> Float32[Array, "rows vocab"]:
        """Multiply any number of rows; XLA has AMX multiply many."""
        return head.logits(hidden, weight) if self.takes_few_rows(weight.shape[1]) else super().logits(hidden, weight)

    def takes_few_rows(self, embed: int) -> bool:
        """Native logits do."""
        return head.fits(embed) and not library.has_tiles()

    rms_norm = staticmethod(calls.rms_norm)
    norm_rope = staticmethod(calls.norm_rope)


class NativeBackend(NativeProductsBackend):
    """Native attention, too: row by row, so that it needs neither tiles nor alignment."""

    name = "native"
    alignment = 1

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits where products do, and whole tile registers hold a head."""
        return super().misfit(heads, dtype) or calls.misfit(heads.head_dim)

    @property
    def few_rows(self) -> tuple[int, ...]:
        """Powers of two; tile registers take rows as they always did."""
        return () if library.has_tiles() else (1, 2, 4, 8, 16, 32)

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """No tiles."""
        return ()

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add nothing."""
        return LaidOut(**vars(segments), tiles=None)

    attend = staticmethod(calls.native_attention)


BACKENDS = (NativeBackend, NativeProductsBackend, NativeInt8Backend)
