"""What a backend is: everything that depends on the device that computes.

A backend is one folder here, whose `backend.py` lists a class for each way it computes in. A class replaces what its
device does better and leaves the rest to plain XLA, `backends.xla.backend`. Nobody outside asks which one it is: the
engine takes the first that fits (`mis_kernels.backends.choose`) and calls what is declared here. Arrays have the axes
of `mis_kernels.operations`, which checks them.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Shaped

from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.recurrence import Chunks, RecurrentShape, RecurrentStates
from mis_kernels.segments import Segments
from mis_kernels.weights import StoredWeight, Weight


@dataclasses.dataclass(frozen=True)
class Backend(ABC):
    """A way to compute the steps of a model on this process's devices.

    Attributes:
        name: What messages and scopes call it.
        fastest_dtype: The type that it multiplies fastest, `float32` or `bfloat16`.
        normalised_rows: Rows of one call that streams over the vocabulary. By default the scored rows of a usual step:
            the vocabulary is read once for all of them.
        drawn_rows: Rows that next tokens are drawn from at a time; divides 64.
        vocab_chunk: Rows of the output projection that it reads at a time; each piece costs several launches.
        contexts: Most contexts of a step.
        mixed_context: Longest context, in tokens, whose rows lie side by side with rows of any others, in steps of
            their own that `for_mixed_steps` lays out; 0: one layout serves every context.
        folds_norms: Whether the weights of norms are multiplied into those of the products after them when a model is
            loaded. Then products take rows as they are, and a factor for each row that comes after the sum.
        brief: Options of XLA for programs that it takes long to compile and that run as fast with less of its work.
        heads: Heads of one device.
        dtype: Type of weights and activations.
    """

    name: ClassVar[str]
    fastest_dtype: ClassVar[str] = "bfloat16"
    normalised_rows: ClassVar[int] = 256
    drawn_rows: ClassVar[int] = 8
    vocab_chunk: ClassVar[int] = 32_768
    contexts: ClassVar[int] = 8
    mixed_context: ClassVar[int] = 0
    folds_norms: ClassVar[bool] = False
    brief: ClassVar[Mapping[str, bool | int]] = MappingProxyType({})

    heads: HeadShape
    dtype: str

    @classmethod
    @abstractmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """Return why it cannot compute such a model on the current target, or None if it can."""

    @classmethod
    @abstractmethod
    def create(cls, heads: HeadShape, dtype: str) -> Self:
        """Return the backend for a model that fits it."""

    @property
    def log_sum_exp_rows(self) -> int:
        """How many rows one call of `log_sum_exp` takes."""
        return self.normalised_rows

    @property
    @abstractmethod
    def few_rows(self) -> tuple[int, ...]:
        """Step sizes below `MIN_TOKENS`, rising, in which a row has the same bits as in larger steps.

        They hold only where weights of products are packed or quantised, see `packs`.
        """

    @property
    @abstractmethod
    def storage_dtype(self) -> jnp.dtype:
        """Type in which weights and caches of `dtype` are kept."""

    @property
    @abstractmethod
    def cache_head_dim(self) -> int:
        """Width of the heads of a KV cache, at least `head_dim`."""

    @property
    @abstractmethod
    def alignment(self) -> int:
        """Rows that visit contexts together, so that segments of different contexts should keep apart."""

    @property
    @abstractmethod
    def context_tile(self) -> tuple[int, int] | None:
        """New tokens of a block, and cached tokens of a tile that a block visits as a whole.

        None if the cost of rows of different contexts does not depend on where they lie.
        """

    @abstractmethod
    def for_mixed_steps(self) -> "Backend":
        """Return the same backend as it lays out steps of contexts of up to `mixed_context` tokens."""

    @abstractmethod
    def for_decoding(self) -> Self:
        """Return the same backend as it best lays out steps whose every row has a context of its own."""

    @abstractmethod
    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """Return the lengths of the tile lists that fit every step of `tokens` new tokens within the limits."""

    @abstractmethod
    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add the tile lists that `attend` visits to segments on the host.

        Args:
            segments: Host arrays.
            page_size: Tokens in a page.
            capacity: Lengths of the lists, from `tile_capacity`; default: as needed.

        Raises:
            ValueError: more tiles are needed than fit, or the page size does not fit the tiles.
        """

    def narrowed(self, segments: LaidOut, rows: Array) -> LaidOut:
        """Return segments in which tokens other than `rows` may see nothing: nobody reads their results.

        By default the segments as they are: a backend that works in tiles would save little.
        """
        return segments

    @abstractmethod
    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        k_pages: Array,
        v_pages: Array,
        segments: LaidOut,
        *,
        scale: float,
        cap: float | None = None,
    ) -> Array:
        """Attend as `mis_kernels.segment_attention` says, with heads as wide as the cache's."""

    @abstractmethod
    def write_pages(self, pages: Array, new: Array, writes: Array) -> Array:
        """Write runs of `page_size` new tokens, `[tokens, kv_heads, head_dim]`, to the pages `writes`, `[runs]`."""

    @abstractmethod
    def write_rows(self, pages: Array, new: Array, writes: Array, slots: Array) -> Array:
        """Write each new token, `[tokens, kv_heads, head_dim]`, to a slot of its page, both `[tokens]`."""

    @abstractmethod
    def gated_delta(
        self,
        inputs: Array,
        decay: Array,
        rate: Array,
        kernel: Array,
        states: RecurrentStates,
        chunks: Chunks,
        *,
        shape: RecurrentShape,
    ) -> tuple[Array, RecurrentStates]:
        """Apply a gated delta rule as `mis_kernels.gated_delta` says."""

    @abstractmethod
    def gated_delta_decode(
        self,
        inputs: Array,
        decay: Array,
        rate: Array,
        kernel: Array,
        states: RecurrentStates,
        slots: Array,
        *,
        shape: RecurrentShape,
    ) -> tuple[Array, RecurrentStates]:
        """Apply it to one token of each of several sequences, as `mis_kernels.gated_delta_decode` says."""

    @abstractmethod
    def rms_norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        """Normalise rows `[*rows, dim]` by their root mean square (arXiv 1910.07467), in float32."""

    @abstractmethod
    def norm_rope(
        self, qkv: Array, cos: Array, sin: Array, q_norm: Array | None, k_norm: Array | None, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Turn a fused projection into queries, keys and values, as `mis_kernels.norm_rope` says."""

    @abstractmethod
    def packs(self, *dimensions: int, gate_bias: bool) -> bool:
        """Whether weights with these dimensions on each device are best packed; `gate_bias`: gates have biases."""

    @abstractmethod
    def pack(self, weight: Shaped[np.ndarray, "*stack in out"]) -> StoredWeight:
        """Return a stack of weights, or of pairs, in host memory in the layout that products read fastest.

        The result has the memory of the stack, which nobody may use any more: a host has no room for two.

        Args:
            weight: The stack, contiguous.
        """

    @abstractmethod
    def pack_quantized(self, weight: QuantizedWeight, depth: int, columns: int) -> Weight:
        """Return a stack of quantised weights in host memory in the layout that products read fastest.

        Args:
            weight: The stack, of weights or of pairs.
            depth: Summands of each weight on one device.
            columns: Output channels of each weight on one device.
        """

    @abstractmethod
    def placement(self, weight: StoredWeight, shardings: Any) -> Any:
        """Return how a stored stack lies on devices, a tree like it: sharded as given, in the fastest order."""

    @abstractmethod
    def log_sum_exp(
        self, hidden: Float[Array, "rows embed"], weight: Float[Array, "vocab embed"], cap: float | None = None
    ) -> Float32[Array, " rows"] | None:
        """Return the log of the sum of the exponentials of each row's logits, reading the head once.

        None where no kernel takes these shapes: the caller then streams over the vocabulary.

        Args:
            hidden: Rows.
            weight: The head, floats.
            cap: Of the logits, see `mis_kernels.capped`; None: there is none.
        """

    @abstractmethod
    def logits(
        self, hidden: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"]
    ) -> Float32[Array, "rows vocab"]:
        """Multiply rows with the whole head, which is not sharded; no cap is applied.

        Args:
            hidden: Rows.
            weight: The head as it is stored.
        """

    @abstractmethod
    def takes_few_rows(self, embed: int) -> bool:
        """Whether `logits` gives a row of this width the same bits in any number of rows, not only in 64."""
