"""The Pallas kernels as a backend; products in floats and norms of hidden states are XLA's."""

import dataclasses
from typing import Any, Self

import jax
from jax.experimental.layout import Format, Layout
from jaxtyping import Array, Float, Float32

from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.tpu import head, products
from mis_kernels.backends.tpu.attention import tpu_attention
from mis_kernels.backends.tpu.fetch import LANES
from mis_kernels.backends.tpu.norm_rope import tpu_norm_rope
from mis_kernels.backends.tpu.pages import write_pages, write_rows
from mis_kernels.backends.tpu.recurrence import tpu_gated_delta
from mis_kernels.backends.tpu.tiles import TpuBlocks, block_sizes, build_tpu_tiles, tile_capacity
from mis_kernels.backends.tpu.weights import KernelWeight
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.segments import Segments
from mis_kernels.target import tpu_chip
from mis_kernels.weights import StoredWeight


@dataclasses.dataclass(frozen=True)
class TpuBackend(XlaBackend):
    """The kernels, with block sizes for a chip and its heads.

    A cache's heads fill lanes: XLA stores an array of narrower rows in another order, and would copy the whole cache
    into rows of 128 and back in every step (8 GiB for Llama-3.2-1B and 131,072 tokens).
    """

    name = "tpu"
    platforms = ("tpu",)
    contexts = 8
    mixed_context = 1024
    lanes = LANES
    folds_norms = True  # of a layer's 395,000 cycles for 4,096 tokens, norms took 85,000; what is left takes 29,000

    blocks: TpuBlocks

    @classmethod
    def create(cls, heads: HeadShape, dtype: str) -> Self:
        """Look up the block sizes of this process's chip.

        Raises:
            ValueError: the tables of block sizes do not know the chip or the heads.
        """
        wide = heads._replace(head_dim=-(-heads.head_dim // LANES) * LANES)
        chip = tpu_chip()
        assert chip is not None, "the platform is a TPU"
        return cls(heads, dtype, block_sizes(chip=chip, **wide._asdict(), dtype=dtype))

    @property
    def context_tile(self) -> tuple[int, int] | None:
        """None: blocks have one context."""
        return None

    @property
    def alignment(self) -> int:
        """A block: where it has one context, most of its tiles need no mask."""
        return self.blocks.tokens

    def for_decoding(self) -> Self:
        """Blocks as small as lanes allow: every row of a block visits the contexts of all."""
        tokens = min(self.blocks.tokens, LANES)
        strip = min(self.blocks.strip, tokens * self.heads.group)
        return dataclasses.replace(self, blocks=dataclasses.replace(self.blocks, tokens=tokens, strip=strip))

    def for_mixed_steps(self) -> "MixedTpuBackend":
        """Blocks of fewer rows, and tiles of several contexts."""
        return MixedTpuBackend(self.heads, self.dtype, self.blocks.for_mixed_steps(self.heads.group))

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """Return the length of the tile list."""
        return (tile_capacity(tokens, limits, self.blocks),)

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Cut rows into `TpuTiles`."""
        tiles = build_tpu_tiles(segments, page_size, self.blocks, *capacity or ())
        return LaidOut(**vars(segments), tiles=tiles)

    def log_sum_exp(
        self, hidden: Float[Array, "rows embed"], weight: Float[Array, "vocab embed"], cap: float | None = None
    ) -> Float32[Array, " rows"] | None:
        """Fuse the product and the sum where rows fill lanes, both ways."""
        return head.tpu_log_sum_exp(hidden, weight, cap) if head.fits(len(hidden), *weight.shape) else None

    def placement(self, weight: StoredWeight, shardings: Any) -> Any:
        """On v7x, tiles of 16 rows: its products read them, and XLA would copy all weights into such in every step.

        So it does with weights that are cut over devices: of their parts it takes tiles of 8 only.
        """

        def sharded(each: Any, sharding: Any) -> Any:
            if each.dtype.itemsize != 2 or tpu_chip() != "v7x" or not sharding.is_fully_replicated:
                return sharding
            return Format(Layout(tuple(range(each.ndim)), tiling=((16, LANES), (2, 1))), sharding)

        return jax.tree.map(sharded, weight, shardings)

    def pack_quantized(self, weight: QuantizedWeight, depth: int, columns: int) -> QuantizedWeight:
        """Have kernels multiply with it if it fills lanes."""
        return KernelWeight(**vars(weight)) if products.fits(depth, columns) else weight

    attend = staticmethod(tpu_attention)
    write_pages = staticmethod(write_pages)
    write_rows = staticmethod(write_rows)
    gated_delta = staticmethod(tpu_gated_delta)
    norm_rope = staticmethod(tpu_norm_rope)


@dataclasses.dataclass(frozen=True)
class MixedTpuBackend(TpuBackend):
    """The same kernels in mixed steps: rows of any contexts lie side by side."""

    contexts = 256
    mixed_context = 0
    alignment = 1

    @property
    def context_tile(self) -> tuple[int, int]:
        """A block, and a part of a tile."""
        return self.blocks.tokens, self.blocks.part_keys


BACKENDS = (TpuBackend,)
