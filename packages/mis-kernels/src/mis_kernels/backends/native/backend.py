"""The native library as a backend; what it does not take is computed by XLA."""

from typing import Any

import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Shaped

from mis_kernels.backends.laid_out import LaidOut, Limits
from mis_kernels.backends.native import calls, library, packed
from mis_kernels.backends.native.packed import PackedWeight, packed_linear
from mis_kernels.backends.protocol import Weight
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.heads import HeadShape
from mis_kernels.segments import Segments


class NativeProductsBackend(XlaCpuBackend):
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
        return weight.partition(partition) if isinstance(weight, PackedWeight) else partition

    def at_layer(self, weight: Weight, layer: Array) -> Weight:
        """Point to a layer of a packed stack, without a copy."""
        return weight.at_layer(layer) if isinstance(weight, PackedWeight) else super().at_layer(weight, layer)

    def linear(self, x: Array, weight: Weight, residual: Array | None = None, factor: Array | None = None) -> Array:
        """Multiply; with a packed weight, add the residual before rounding."""
        if not isinstance(weight, PackedWeight):
            return super().linear(x, weight, residual, factor)
        assert factor is None, "norms are not folded here"
        return packed_linear(x, weight, residual)

    def gated_linear(self, x: Array, gate_up: Weight, bias: Array | None = None, factor: Array | None = None) -> Array:
        """Gate packed products before they leave the cache."""
        if not isinstance(gate_up, PackedWeight):
            return super().gated_linear(x, gate_up, bias, factor)
        assert bias is None, "packed weights are gated before a bias could be added"
        assert factor is None, "norms are not folded here"
        return packed_linear(x, gate_up)

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

    def tile_capacity(self, tokens: int, limits: Limits) -> tuple[int, ...]:
        """No tiles."""
        return ()

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add nothing."""
        return LaidOut(**vars(segments), tiles=None, backend=self)

    attend = staticmethod(calls.native_attention)


BACKENDS = (NativeBackend, NativeProductsBackend)
