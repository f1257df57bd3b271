"""The native library as a backend; what it does not take is computed by XLA."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Shaped

from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.native import calls, int8, library, packed, recurrence
from mis_kernels.backends.native.packed import PackedWeight
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.segments import Segments
from mis_kernels.weights import Weight


class NativeInt8Backend(XlaCpuBackend):
    """Plain XLA, but for products with quantised weights."""

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits where the library was compiled and the CPU has what int8 needs."""
        return super().misfit(heads, dtype) or library.why_not_int8()

    pack_quantized = staticmethod(int8.pack)


class NativeProductsBackend(XlaCpuBackend):
    """Native products, norms and recurrence; attention of heads that the native kernel does not take is XLA's."""

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
        """Reorder bits for tile registers."""
        return packed.pack_stack(weight.view(np.uint16))

    @property
    def log_sum_exp_rows(self) -> int:
        """Many: rows of zeros, which fill, take no time."""
        return self.normalised_rows

    def log_sum_exp(self, hidden: Array, weight: Array, cap: float | None = None) -> Array | None:
        """Take native logits, where `logits` does."""
        types = {hidden.dtype, weight.dtype}
        if types != {jnp.dtype(jnp.bfloat16)} or len(weight) == 1 or not self.takes_few_rows(weight.shape[1]):
            return None
        return calls.log_sum_exp(hidden, weight, cap)

    def logits(self, hidden: Array, weight: Shaped[Array, "vocab embed"]) -> Float32[Array, "rows vocab"]:
        """Multiply any number of rows."""
        return calls.logits(hidden, weight) if self.takes_few_rows(weight.shape[1]) else super().logits(hidden, weight)

    def takes_few_rows(self, embed: int) -> bool:
        """Native logits do."""
        return calls.fits_logits(embed)

    pack_quantized = staticmethod(int8.pack)
    rms_norm = staticmethod(calls.rms_norm)
    norm_rope = staticmethod(calls.norm_rope)
    gated_delta = staticmethod(recurrence.gated_delta)


class NativeAttentionBackend(XlaCpuBackend):
    """Native attention, row by row: it needs neither tiles nor alignment, nor time for tokens that see nothing."""

    alignment = 1
    context_tile = None

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """No tiles."""
        return ()

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add nothing."""
        return LaidOut(**vars(segments), tiles=None)

    def narrowed(self, segments: LaidOut, rows: Array) -> LaidOut:
        """Have other tokens see nothing."""
        token = jnp.arange(segments.num_tokens, dtype=jnp.int32)
        is_read = (token[:, None] == rows).any(axis=1)
        return dataclasses.replace(
            segments,
            context_len=jnp.where(is_read, segments.context_len, 0),
            segment_start=jnp.where(is_read, segments.segment_start, token + 1),
        )

    attend = staticmethod(calls.native_attention)


class NativeBackend(NativeAttentionBackend, NativeProductsBackend):
    """Native attention and products."""

    name = "native"

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits where products do, and whole tile registers hold a head."""
        return super().misfit(heads, dtype) or calls.misfit(heads.head_dim)

    @property
    def few_rows(self) -> tuple[int, ...]:
        """Few sizes: products pass over rows of padding, so that with sizes between these no step would be faster."""
        return (1, 8, 32)


class NativeFloat32Backend(NativeAttentionBackend):
    """Native products, attention, norms and RoPE in float32."""

    name = "native"
    few_rows = (1, 2, 4, 8, 16, 32)

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits models in float32 where the library was compiled and the CPU has what it needs."""
        wrong_type = None if dtype == "float32" else f"computes float32, not {dtype}"
        return super().misfit(heads, dtype) or wrong_type or library.why_not_float32() or calls.misfit(heads.head_dim)

    def packs(self, *dimensions: int, gate_bias: bool) -> bool:
        """As in bfloat16."""
        return not gate_bias and packed.fits(*dimensions)

    def pack(self, weight: Shaped[np.ndarray, "*stack in out"]) -> PackedWeight:
        """Reorder numbers for vectors."""
        return packed.pack_stack(weight)

    def pack_quantized(self, weight: QuantizedWeight, depth: int, columns: int) -> Weight:
        """Tile weights where the CPU has what int8 needs."""
        return int8.pack(weight, depth, columns) if library.why_not_int8() is None else weight

    rms_norm = staticmethod(calls.rms_norm)
    norm_rope = staticmethod(calls.norm_rope)


BACKENDS = (NativeBackend, NativeProductsBackend, NativeFloat32Backend, NativeInt8Backend)
