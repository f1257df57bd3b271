"""Plain XLA as a backend, and what the others leave to it."""

from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Shaped

from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.protocol import Backend
from mis_kernels.backends.xla import delta_decode, norms, pages, recurrence, rope, tiles
from mis_kernels.backends.xla.attention import xla_attention
from mis_kernels.backends.xla.head import head_logits
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.segments import MIN_TOKENS, Segments
from mis_kernels.target import platform
from mis_kernels.weights import StoredWeight, Weight


class XlaBackend(Backend):
    """Plain XLA, as it computes on accelerators.

    Attributes:
        platforms: Where it runs: `cpu`, `gpu`, `tpu`.
        lanes: Heads of a KV cache are as wide as a multiple of this.
        keeps_bits: Whether weights and caches of 16 bits are kept as integers (see `mis_kernels.storage`).
    """

    name = "xla"
    platforms: ClassVar[tuple[str, ...]] = ("gpu", "tpu")
    contexts = 256
    lanes: ClassVar[int] = 1
    keeps_bits: ClassVar[bool] = False

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """It fits every model on its platforms."""
        return None if platform() in cls.platforms else f"runs on {' and '.join(cls.platforms)} only"

    @classmethod
    def create(cls, heads: HeadShape, dtype: str) -> Self:
        """Choose nothing more."""
        return cls(heads, dtype)

    @property
    def storage_dtype(self) -> jnp.dtype:
        """Integers as wide, or the type itself."""
        return jnp.dtype(jnp.uint16 if self.keeps_bits and self.dtype == "bfloat16" else self.dtype)

    @property
    def cache_head_dim(self) -> int:
        """Whole lanes."""
        return -(-self.heads.head_dim // self.lanes) * self.lanes

    @property
    def context_tile(self) -> tuple[int, int] | None:
        """As attention is cut."""
        return tiles.ROW_BLOCK, tiles.CONTEXT_TILE

    @property
    def alignment(self) -> int:
        """None: a block may hold segments of any contexts."""
        return 1

    @property
    def few_rows(self) -> tuple[int, ...]:
        """None."""
        return ()

    def for_mixed_steps(self) -> Backend:
        """Change nothing."""
        return self

    def for_decoding(self) -> Self:
        """Change nothing."""
        return self

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """Return the lengths of the lists of context tiles and of own tiles."""
        return tiles.tile_capacity(tokens, limits)

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Cut rows into `BlockTiles`."""
        return LaidOut(**vars(segments), tiles=tiles.build_tiles(segments, capacity))

    attend = staticmethod(xla_attention)
    write_pages = staticmethod(pages.write_pages)
    write_rows = staticmethod(pages.write_rows)
    gated_delta = staticmethod(recurrence.gated_delta)
    gated_delta_decode = staticmethod(delta_decode.gated_delta_decode)
    rms_norm = staticmethod(norms.rms_norm)
    norm_rope = staticmethod(rope.norm_rope)

    def packs(self, *dimensions: int, gate_bias: bool) -> bool:
        """Pack nothing."""
        return False

    def pack(self, weight: Shaped[np.ndarray, "*stack in out"]) -> StoredWeight:
        """Return the plain weight."""
        return weight.view(self.storage_dtype)

    def pack_quantized(self, weight: QuantizedWeight, depth: int, columns: int) -> Weight:
        """Change nothing."""
        return weight

    def placement(self, weight: StoredWeight, shardings: Any) -> Any:
        """Leave the order to the compiler."""
        return shardings

    def log_sum_exp(self, hidden: Array, weight: Array, cap: float | None = None) -> Array | None:
        """Leave it to the caller."""
        return None

    def logits(self, hidden: Array, weight: Shaped[Array, "vocab embed"]) -> Float32[Array, "rows vocab"]:
        """Multiply with some of the head's rows at a time."""
        return head_logits(hidden, weight, self.vocab_chunk)

    def takes_few_rows(self, embed: int) -> bool:
        """They do not."""
        return False


class XlaCpuBackend(XlaBackend):
    """On CPUs, which move and multiply float32 and integers faster than bfloat16."""

    platforms = ("cpu",)
    fastest_dtype = "float32"
    normalised_rows = 128
    drawn_rows = 1
    vocab_chunk = 8192
    keeps_bits = True
    brief = MappingProxyType({"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False})

    @property
    def log_sum_exp_rows(self) -> int:
        """As few as products take: small requests score few rows, and weigh nothing beside large ones."""
        return MIN_TOKENS


BACKENDS = (XlaCpuBackend, XlaBackend)
