"""What a backend is: everything that depends on the device that computes.

A backend is one folder here, whose `backend.py` lists a class for each way it computes in. A class replaces what its
device does better and leaves the rest to plain XLA. Nobody outside asks which one it is: the engine takes the first
that fits (`mis_kernels.backends.choose`) and calls what is declared here. Arrays have the axes of
`mis_kernels.operations`, which checks them.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_kernels import quantized
from mis_kernels.backends.laid_out import LaidOut, StepLimits
from mis_kernels.backends.xla import norms, pages, rope, tiles
from mis_kernels.backends.xla.attention import xla_attention
from mis_kernels.backends.xla.head import head_logits
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedRows, QuantizedWeight
from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits
from mis_kernels.target import platform

Arrays = TypeVar("Arrays")
"""An array, or a tree of arrays."""

Weight = Any
"""Weights of products as a backend stores them: an array `[*stack, in, out]`, a `QuantizedWeight`, or its own tree."""


class FoldedNorm(NamedTuple):
    """A root mean square norm whose weights are in the product behind it: each row's product lacks a factor.

    Attributes:
        squares: Sums of the rows' squares.
        epsilon: Added to the mean square.
    """

    squares: Float32[Array, "rows 1"]
    epsilon: float

    def factor(self, width: int) -> Float32[Array, "rows 1"]:
        """Return what the products of rows of so many elements are multiplied with."""
        return lax.rsqrt(self.squares / width + self.epsilon)


class HeadTurns(NamedTuple):
    """What turns heads by their positions and normalises them.

    Attributes:
        cos: Cosines of `mis_kernels.rotary_tables`.
        sin: Sines of them.
        q_norm: Weight of the queries' norm, or None: no norm.
        k_norm: Weight of the keys' norm, given together with `q_norm`.
        epsilon: Added to the mean square.
    """

    cos: Float32[Array, "tokens head_dim"]
    sin: Float32[Array, "tokens head_dim"]
    q_norm: Float[Array, " head_dim"] | None
    k_norm: Float[Array, " head_dim"] | None
    epsilon: float


@dataclasses.dataclass(frozen=True)
class Backend:
    """A way to compute the steps of a model on this process's devices.

    Attributes:
        name: What messages and scopes call it.
        platforms: Where it runs: `cpu`, `gpu`, `tpu`.
        fastest_dtype: The type that it multiplies fastest, `float32` or `bfloat16`.
        normalised_rows: Rows of one call of the streamed log-sum-exp. By default the scored rows of a usual step:
            the vocabulary is read once for all of them.
        drawn_rows: Rows that next tokens are drawn from at a time; divides 64.
        vocab_chunk: Rows of the output projection that it reads at a time; each turn costs several launches.
        lanes: Heads of a KV cache are as wide as a multiple of this.
        keeps_bits: Whether weights and caches of 16 bits are kept as integers (see `mis_kernels.storage`).
        recomputes_operands: Whether the compiler would compute an operand again in every tile of a product.
        folds_norms: Whether the weights of norms are multiplied into those of the products behind them when a model is
            loaded. Then products take rows as they are, and a factor for each row that comes after the sum.
        heads: Heads of one device.
        dtype: Type of weights and activations.
    """

    name: ClassVar[str]
    platforms: ClassVar[tuple[str, ...]]
    fastest_dtype: ClassVar[str] = "bfloat16"
    normalised_rows: ClassVar[int] = 256
    drawn_rows: ClassVar[int] = 8
    vocab_chunk: ClassVar[int] = 32_768
    lanes: ClassVar[int] = 1
    keeps_bits: ClassVar[bool] = False
    recomputes_operands: ClassVar[bool] = True
    folds_norms: ClassVar[bool] = False

    heads: HeadShape
    dtype: str

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        """Return why it cannot compute such a model on what code is made for here, or None if it can."""
        return None if platform() in cls.platforms else f"runs on {' and '.join(cls.platforms)} only"

    @classmethod
    def create(cls, heads: HeadShape, dtype: str) -> Self:
        """Return the backend for a model that fits it."""
        return cls(heads, dtype)

    @property
    def few_rows(self) -> tuple[int, ...]:
        """Sizes below `MIN_TOKENS`, rising, of steps in which a row has the bits that it has in larger ones.

        Where weights of products are packed or quantised, see `packs`; in no others.
        """
        return ()

    @property
    def storage_dtype(self) -> jnp.dtype:
        """Type in which weights and caches of `dtype` are kept."""
        return jnp.dtype(jnp.uint16 if self.keeps_bits and self.dtype == "bfloat16" else self.dtype)

    @property
    def cache_head_dim(self) -> int:
        """Width of the heads of a KV cache, at least `head_dim`."""
        return -(-self.heads.head_dim // self.lanes) * self.lanes

    @property
    def alignment(self) -> int:
        """Rows that visit contexts together, so that segments of different contexts should keep apart."""
        return tiles.ALIGNMENT

    def for_decoding(self) -> Self:
        """Return the same backend as it best lays out steps whose every row has a context of its own."""
        return self

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        """Return the lengths of the tile lists that fit every step of `tokens` new tokens within the limits."""
        return tiles.tile_capacity(tokens, limits)

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add the tile lists that `attend` visits to segments on the host.

        Args:
            segments: Host arrays.
            page_size: Tokens in a page.
            capacity: Lengths of the lists, from `tile_capacity`; default: as needed.

        Raises:
            ValueError: more tiles are needed than fit, or the page size does not fit the tiles.
        """
        return LaidOut(**vars(segments), tiles=tiles.build_tiles(segments, capacity))

    attend = staticmethod(xla_attention)
    write_pages = staticmethod(pages.write_pages)
    write_rows = staticmethod(pages.write_rows)
    rms_norm = staticmethod(norms.rms_norm)
    norm_rope = staticmethod(rope.norm_rope)

    def packs(self, *dimensions: int, gate_bias: bool) -> bool:
        """Whether weights with these dimensions on each device are best packed; `gate_bias`: gates have biases."""
        return False

    def pack(self, weight: Shaped[np.ndarray, "*stack in out"]) -> Weight:
        """Return a stack of weights in host memory as `linear`, or `gated_linear` of pairs, likes them best."""
        return weight.view(self.storage_dtype)

    def pack_quantized(self, weight: QuantizedWeight, depth: int, columns: int) -> QuantizedWeight:
        """Return a stack of quantised weights in host memory as products with them like it best.

        Args:
            weight: The stack, of weights or of pairs.
            depth: Summands of each weight on one device.
            columns: Output channels of each weight on one device.
        """
        return weight

    def partition(self, weight: Weight, partition: PartitionSpec) -> Any:
        """Return how a stored weight is cut, a tree like it, if the plain weight is cut like `partition`."""
        return weight.partition(partition) if isinstance(weight, QuantizedWeight) else partition

    def placement(self, weight: Weight, cuts: Any) -> Any:
        """Return how a stored stack lies on devices, a tree like it: as it is cut, in the fastest order."""
        return cuts

    def at_layer(self, weight: Weight, layer: Int32[Array, ""]) -> Weight:
        """Return one layer's part of a stored stack, floats if it is an array."""
        if isinstance(weight, QuantizedWeight):
            return weight.at_layer(layer)
        return from_bits(lax.dynamic_index_in_dim(weight, layer, 0, keepdims=False))

    def linear(
        self,
        x: Float[Array, "rows in"],
        weight: Weight,
        residual: Float[Array, "rows out"] | None = None,
        norm: FoldedNorm | None = None,
    ) -> Float[Array, "rows out"]:
        """Multiply, accumulate in float32, and return the type of `x`.

        Args:
            x: Activations.
            weight: As `pack` or `pack_quantized` left it, or an array.
            residual: Is added to the rounded product.
            norm: In front of the product; only of backends that fold norms.
        """
        factor = None if norm is None else norm.factor(x.shape[1])
        product = self._product(self._operand(x, weight), weight, factor).astype(x.dtype)
        return product if residual is None else residual + product

    def project(
        self,
        x: Float[Array, "tokens in"],
        weight: Weight,
        turns: HeadTurns,
        bias: Float[Array, "kv_heads group_plus_two head_dim"] | None = None,
        norm: FoldedNorm | None = None,
    ) -> tuple[
        Float[Array, "tokens heads head_dim"],
        Float[Array, "tokens kv_heads head_dim"],
        Float[Array, "tokens kv_heads head_dim"],
    ]:
        """Return queries, keys and values of tokens; queries and keys normalised and rotated.

        Args:
            x: Activations.
            weight: Per KV head its query heads, then its key, then its value, as columns.
            turns: Of the tokens.
            bias: Added to the product.
            norm: In front of the product; only of backends that fold norms.
        """
        with jax.named_scope("qkv"):
            qkv = self.linear(x, weight, norm=norm)
            qkv = qkv.reshape(len(qkv), -1, self.heads.group + 2, self.heads.head_dim)
            qkv = qkv if bias is None else qkv + bias
        with jax.named_scope(f"norm_rope_{self.name}"):
            return self.norm_rope(qkv, *turns)

    def gated_linear(
        self,
        x: Float[Array, "rows in"],
        gate_up: Weight,
        bias: Float[Array, "2 out"] | None = None,
        norm: FoldedNorm | None = None,
    ) -> Float[Array, "rows out"]:
        """Multiply with a gate and with what it gates, and return silu(gate) * up, computed in float32.

        Source: SwiGLU, arXiv 2002.05202, with the SiLU that the model families use.

        Args:
            x: Activations.
            gate_up: `[2, in, out]`, gate first; not packed where there is a bias.
            bias: Of both products.
            norm: In front of both products; only of backends that fold norms.
        """
        rows, factor = self._operand(x, gate_up), None if norm is None else norm.factor(x.shape[1])
        gate, up = self._product(rows, gate_up[0], factor), self._product(rows, gate_up[1], factor)
        if bias is not None:
            gate, up = gate + bias[0], up + bias[1]
        return (jax.nn.silu(gate) * up).astype(x.dtype)

    def quantize_rows(self, x: Float[Array, "rows in"], weight: QuantizedWeight) -> QuantizedRows:
        """Quantise each row by itself, for products with a weight of `pack_quantized`."""
        return quantized.quantize_rows(x, weight.block)

    def quantized_product(self, rows: QuantizedRows, weight: QuantizedWeight) -> Float32[Array, "rows out"]:
        """Multiply rows of `quantize_rows` with one weight."""
        return quantized.quantized_product(rows, weight)

    def _operand(self, x: Array, weight: Weight) -> Array | QuantizedRows:
        """Return rows as all products with such a weight take them."""
        if isinstance(weight, QuantizedWeight):
            return self.materialised(self.quantize_rows(x, weight))
        return x

    def _product(self, rows: Array | QuantizedRows, weight: Weight, factor: Array | None) -> Array:
        if isinstance(rows, QuantizedRows):
            product = self.quantized_product(rows, weight)
        else:
            product = jnp.dot(rows, weight, preferred_element_type=jnp.float32)
        return product if factor is None else product * factor

    def log_sum_exp(
        self, hidden: Float[Array, "rows embed"], weight: Float[Array, "vocab embed"]
    ) -> Float32[Array, " rows"] | None:
        """Return the log of the sum of the exponentials of each row's logits, reading the head once.

        None where no kernel takes these shapes: the caller then streams over the vocabulary.
        """
        return None

    def logits(
        self, hidden: Float[Array, "rows embed"], weight: Shaped[Array, "vocab embed"]
    ) -> Float32[Array, "rows vocab"]:
        """Multiply rows with the whole head, of which nothing is cut over devices.

        Args:
            hidden: Rows.
            weight: The head as it is stored.
        """
        return head_logits(hidden, weight, self.vocab_chunk)

    def takes_few_rows(self, embed: int) -> bool:
        """Whether `logits` give a row of so many elements the same bits in any number of rows, not only in 64."""
        return False

    def materialised(self, x: Arrays) -> Arrays:
        """Keep the compiler from computing `x` again in every tile of every product that reads it."""
        return lax.optimization_barrier(x) if self.recomputes_operands else x
