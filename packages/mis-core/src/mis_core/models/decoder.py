"""The decoder shared by all families: one layer, scanned over stacked weights.

The decoder knows neither segments nor scheduling: a step hands it token ids, positions and an
`attend` function. Products take operands of the model's type and accumulate in float32; norms,
RoPE and the softmax are float32.

It runs on one device's share of the weights, inside a `shard_map` with the axis `TENSOR` (see
`parallel`): every product over a cut dimension is followed by a sum over that axis.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_core.models.config import ModelConfig
from mis_core.models.layers import Layer, rope_kinds
from mis_core.models.parallel import PRODUCTS, add_product, gather_columns, whole_product
from mis_core.models.rope import RopeConfig, frequencies
from mis_kernels import from_bits, rotary_tables, to_bits
from mis_kernels.backends import Backend
from mis_kernels.operations import project
from mis_kernels.weights import FoldedNorm, HeadRotations, layer_of, materialised, weight_of

Cache = Any
"""KV cache: any pytree that `attend` takes and returns."""

Attend = Callable[[Array, Array, Array, Cache, Array], tuple[Array, Cache]]
"""`(q, k, v, cache, layer) -> (output, cache)`: k and v `[tokens, kv_heads, head_dim]`, q and output with `heads`."""


PADDING = -1
"""Token of rows that nobody reads."""

NORMS = ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm", "q_norm", "k_norm", "norm")
"""Names of norms' weights, which are float32 in memory."""

NORM_OF = {"qkv": "attention_norm", "gate_up": "mlp_norm"}
"""The norm in front of a product, whose weights are multiplied into the product's by backends that fold norms."""

_NORM_AFTER = {"out": "attention_out_norm", "down": "mlp_out_norm"}


class Normed(NamedTuple):
    """What a product behind a norm takes: normalised rows; or rows as they are, and the norm that they lack."""

    rows: Array
    norm: FoldedNorm | None


class DecoderLayer(nnx.Module):
    """Weights of one layer; `Decoder` holds them stacked along a leading `layers` axis.

    The columns of `qkv` keep a KV head, its query heads and its value head together, and so do the rows of
    `out`, so that sharding by KV head cuts one axis. Weights have the two dimensions of their product last:
    TPUs would copy others into another order in every step.
    """

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, backend: Backend) -> None:
        def weight(*shape: int) -> nnx.Param:
            return nnx.Param(jnp.zeros(shape, dtype))

        def norm(size: int) -> nnx.Param:
            return nnx.Param(jnp.zeros(size, jnp.float32))

        _, kv_heads, head_dim = config.attention
        group, width = config.attention.group, kv_heads * head_dim
        self.config, self.backend = config, backend
        if not backend.folds_norms:
            self.attention_norm = norm(config.embed)
            self.mlp_norm = norm(config.embed)
        if config.family.norms_outputs:
            self.attention_out_norm = norm(config.embed)
            self.mlp_out_norm = norm(config.embed)
        self.qkv = weight(config.embed, (group + 2) * width)
        if config.qkv_bias:
            self.qkv_bias = weight(kv_heads, group + 2, head_dim)
        if config.family.qk_norm:
            self.q_norm = norm(head_dim)
            self.k_norm = norm(head_dim)
        self.out = weight(group * width, config.embed)
        if config.attention_bias:
            self.out_bias = weight(config.embed)
        self.gate_up = weight(2, config.embed, config.mlp)
        self.down = weight(config.mlp, config.embed)
        if config.mlp_bias:
            self.gate_up_bias = weight(2, config.mlp)
            self.down_bias = weight(config.embed)

    def __call__(
        self,
        x: Float[Array, "tokens embed"],
        squares: Float32[Array, "tokens 1"] | None,
        tables: tuple[Array, Array],
        attend: Attend,
        cache: Cache,
        layer: Array,
        rows: Int32[Array, " rows"] | None = None,
    ) -> tuple[Float[Array, "rows embed"], Float32[Array, "rows 1"] | None, Cache]:
        """Run the layer on new tokens; return all of them, or only some rows, which are cheaper.

        Where norms are folded, `squares` are the sums of the rows' squares: the product before leaves them.
        """
        with jax.named_scope("attention"):
            q, k, v = self._project(self._normed(x, squares, "attention_norm"), tables)
            attended, cache = attend(q, k, v, cache, layer)
            attended = attended.reshape(len(x), -1)
            if rows is not None:
                x, attended = x[rows], attended[rows]
            with jax.named_scope("out"):
                bias = self.out_bias[...] if self.config.attention_bias else None
                x = self._added(x, attended, "out", bias)
        with jax.named_scope("mlp"):
            normed = self._normed(x, squares_of(x, self.backend), "mlp_norm")
            with jax.named_scope("gate_up"):
                bias = self.gate_up_bias[...] if self.config.mlp_bias else None
                pair, gate = self.gate_up.get_value(), self.config.family.gate
                gated = materialised(pair.gated_linear(normed.rows, bias, normed.norm, gate))
            with jax.named_scope("down"):
                bias = self.down_bias[...] if self.config.mlp_bias else None
                x = self._added(x, gated, "down", bias)
            return x, squares_of(x, self.backend), cache

    def _added(self, residual: Array, x: Array, name: str, bias: Array | None) -> Array:
        """Add a product to the residual; normalise it first where the family does so."""
        weight = getattr(self, name).get_value()
        if not self.config.family.norms_outputs:
            return add_product(residual, x, weight, bias)
        product = whole_product(x, weight)
        product = product if bias is None else product + bias
        with jax.named_scope("norm"):
            norm = getattr(self, _NORM_AFTER[name])[...]
            return residual + self.backend.rms_norm(product, norm, self.config.norm_epsilon)

    def _normed(self, x: Array, squares: Array | None, name: str) -> Normed:
        with jax.named_scope("norm"):
            if squares is not None:
                return Normed(x, FoldedNorm(squares, self.config.norm_epsilon))
            weight = getattr(self, name)[...]
            return Normed(materialised(self.backend.rms_norm(x, weight, self.config.norm_epsilon)), None)

    def _project(self, normed: Normed, tables: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        config = self.config
        norms = (self.q_norm[...], self.k_norm[...]) if config.family.qk_norm else (None, None)
        rotations = HeadRotations(*tables, *norms, config.norm_epsilon)
        bias = self.qkv_bias[...] if config.qkv_bias else None
        return project(normed.rows, self.qkv.get_value(), rotations, bias, normed.norm, backend=self.backend)


def _at_layer(path: tuple, stack: Any, layer: Array) -> Any:
    """Return one layer's part of a stacked parameter: what multiplies, or an array."""
    return weight_of(stack).at_layer(layer) if path[-1] in PRODUCTS else layer_of(stack, layer)


def squares_of(x: Float[Array, "tokens embed"], backend: Backend) -> Float32[Array, "tokens 1"] | None:
    """Return the sum of each row's squares where norms are folded; None elsewhere."""
    if not backend.folds_norms:
        return None
    wide = x.astype(jnp.float32)
    return (wide * wide).sum(-1, keepdims=True)


def make_rotations(
    layers: Sequence[Layer], positions: Int32[Array, " tokens"]
) -> Callable[[Array], tuple[Float32[Array, "tokens head_dim"], Float32[Array, "tokens head_dim"]]]:
    """Return what gives a layer, by its number, its cosines and sines; there is a table for each kind of RoPE.

    A layer without RoPE turns by no angle, which changes no value.
    """

    def table(rope: RopeConfig | None) -> tuple[Array | float, Array | float]:
        if rope is None:
            return 1.0, 0.0
        inverse, factor = frequencies(rope)
        return rotary_tables(positions, jnp.asarray(inverse), factor)

    with jax.named_scope("rotary_tables"):
        (first, _), *others = ((table(rope), numbers) for rope, numbers in rope_kinds(layers).items())
    shape = len(positions), layers[0].heads.head_dim

    def rotations_of(layer: Array) -> tuple[Array, Array]:
        cos, sin = first
        with jax.named_scope("rotary_tables"):
            for (other_cos, other_sin), numbers in others:
                is_other = (jnp.array(numbers) == layer).any()
                cos, sin = jnp.where(is_other, other_cos, cos), jnp.where(is_other, other_sin, sin)
            return jnp.broadcast_to(cos, shape), jnp.broadcast_to(sin, shape)  # of no RoPE alone there is no table

    return rotations_of


class Decoder(nnx.Module):
    """Embedding, layers and the final norm; the head is applied by the runner, to scored rows only.

    Weights may be kept as their bits (see `mis_kernels.storage`); they become floats where they are used.
    """

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, backend: Backend) -> None:
        """Declare the parameters.

        Args:
            config: The model's shape, its heads spread over the devices.
            dtype: Type of the parameters as they are stored; norms, and a decision head, are float32.
            backend: Who computes on each device's share.
        """
        self.config, self.backend = config, backend
        self.embedding = nnx.Param(jnp.zeros((config.vocab_size, config.embed), dtype))
        count = len(config.layers)
        self.layers = nnx.vmap(lambda _: DecoderLayer(config, dtype, backend), axis_size=count, in_axes=0)(
            jnp.arange(count)
        )
        self.norm = nnx.Param(jnp.zeros(config.embed, jnp.float32))
        if not config.tied:
            self.head = nnx.Param(jnp.zeros((config.head_rows, config.embed), dtype))
        if config.family.of_tokens:
            self.head_bias = nnx.Param(jnp.zeros(config.head_rows, dtype))
        if config.decision is not None:  # in float32, whatever the others are: they are few
            self.decision_head = nnx.Param(jnp.zeros((config.decision.count, config.embed), jnp.float32))
            if config.decision.has_bias:
                self.decision_bias = nnx.Param(jnp.zeros(config.decision.count, jnp.float32))

    @property
    def head_weight(self) -> Shaped[Array, "head_rows embed"]:
        """Rows of the output projection, as stored."""
        return (self.embedding if self.config.tied else self.head)[...]

    def __call__(
        self,
        token_ids: Int32[Array, " tokens"],
        positions: Int32[Array, " tokens"],
        rows: Int32[Array, " rows"],
        attend: Attend,
        cache: Cache,
    ) -> tuple[Float[Array, "rows embed"], Cache]:
        """Return the final-normed hidden states of some rows, and the cache.

        Rows of `PADDING` are zeros, unless a projection back to hidden states has a bias, and native products pass over
        those at the end. The last layer computes its output projection and its MLP for the chosen rows only.
        """
        rotations_of = make_rotations(self.config.layers, positions)
        graph, stacked = nnx.split(self.layers)

        def layer(
            x: Array, squares: Array | None, cache: Cache, index: Array, rows: Array | None = None
        ) -> tuple[Array, Array | None, Cache]:
            flat = nnx.to_flat_state(stacked)
            weights = {path: leaf.replace(_at_layer(path, leaf.get_value(), index)) for path, leaf in flat}
            rotations = rotations_of(index)
            return nnx.merge(graph, nnx.from_flat_state(weights))(x, squares, rotations, attend, cache, index, rows)

        # Where weights are bits, so are activations between layers: XLA:CPU would convert them by a copy.
        kept = to_bits if self.embedding[...].dtype == jnp.uint16 else lambda x: x

        def step(
            carry: tuple[Array, Array | None, Cache], index: Array
        ) -> tuple[tuple[Array, Array | None, Cache], None]:
            x, squares, cache = layer(from_bits(carry[0]), *carry[1:], index)
            return (kept(x), squares, cache), None

        with jax.named_scope("embed"):
            x = gather_columns(from_bits(self.embedding[...][jnp.maximum(token_ids, 0)]))
            x = jnp.where((token_ids == PADDING)[:, None], 0, x)
            if self.config.embedding_scale is not None:
                x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        last = len(self.config.layers) - 1
        with jax.named_scope("layers"):
            start = kept(x), squares_of(x, self.backend), cache
            (x, squares, cache), _ = lax.scan(step, start, jnp.arange(last))
        with jax.named_scope("last_layer"):
            x, _, cache = layer(from_bits(x), squares, cache, jnp.int32(last), rows)
        with jax.named_scope("final_norm"):
            return self.backend.rms_norm(x, self.norm[...], self.config.norm_epsilon), cache
