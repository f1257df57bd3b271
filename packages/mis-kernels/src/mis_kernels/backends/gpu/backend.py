"""The attention kernel for NVIDIA GPUs as a backend; everything else is XLA's, which calls cuBLAS for products."""

import dataclasses
from typing import Self

from mis_kernels.backends.gpu.attention import gpu_attention, is_lowered
from mis_kernels.backends.gpu.tiles import KEYS, GpuBlocks, build_tiles, tile_capacity
from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.heads import HeadShape
from mis_kernels.segments import Segments
from mis_kernels.target import cuda_capability

WIDEST = 256
LEAST_CAPABILITY = 8.0


@dataclasses.dataclass(frozen=True)
class GpuBackend(XlaBackend):
    """Attention in one launch a layer."""

    name = "gpu"
    platforms = ("gpu",)
    alignment = 1  # a block visits the contexts of all its rows, so that only the blocks at an edge visit two

    blocks: GpuBlocks

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits models in bfloat16 with heads that registers hold, on GPUs that Triton compiles for."""
        if reason := super().misfit(heads, dtype):
            return reason
        if dtype != "bfloat16":
            # In all bits of float32 a program's products are unrolled without matrix units and do not fit registers.
            return f"computes bfloat16, not {dtype}"
        if heads.head_dim > WIDEST:
            return f"takes heads of up to {WIDEST} elements, not {heads.head_dim}"
        if not is_lowered():
            return "needs a JAX whose Pallas is lowered through Triton"
        capability = cuda_capability()
        if capability is None or capability < LEAST_CAPABILITY:
            return f"needs an NVIDIA GPU of compute capability {LEAST_CAPABILITY} or later"
        return None

    @classmethod
    def create(cls, heads: HeadShape, dtype: str) -> Self:
        """Choose blocks for the heads."""
        return cls(heads, dtype, GpuBlocks.of(heads))

    @property
    def context_tile(self) -> tuple[int, int] | None:
        """A program's rows, and the keys that it takes at a time."""
        return self.blocks.tokens, KEYS

    def for_decoding(self) -> Self:
        """A program for each token, which then visits one context."""
        return dataclasses.replace(self, blocks=self.blocks._replace(tokens=1))

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """Return the lengths of the lists of visits and of own tiles."""
        return tile_capacity(tokens, limits, self.blocks)

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """List what blocks visit."""
        return LaidOut(**vars(segments), tiles=build_tiles(segments, self.blocks, capacity))

    attend = staticmethod(gpu_attention)


BACKENDS = (GpuBackend,)
