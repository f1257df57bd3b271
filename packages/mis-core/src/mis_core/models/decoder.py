"""The decoder shared by all families: one layer, or one block of layers, scanned over stacked weights.

The decoder knows neither segments nor scheduling: a step hands it token ids, positions, an `attend` function and, for
recurrent layers, a `recur` function. Products take operands of the model's type and accumulate in float32; norms, RoPE
and the softmax are float32.

It runs on one device's share of the weights, inside a `shard_map` with the axis `TENSOR` (see
`parallel`): every product over a cut dimension is followed by a sum over that axis.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_core.models.attention import Attend, AttentionLayer
from mis_core.models.blocks import Cache, squares_of
from mis_core.models.config import ModelConfig
from mis_core.models.layers import Layer, attention_layers, recurrent_per_block, rope_kinds
from mis_core.models.parallel import PRODUCTS, gather_columns
from mis_core.models.recurrent import Recur, RecurrentLayer
from mis_core.models.rope import RopeConfig, frequencies
from mis_kernels import from_bits, rotary_tables, to_bits
from mis_kernels.backends import Backend
from mis_kernels.weights import layer_of, weight_of

PADDING = -1
"""Token of rows that nobody reads."""

Carry = tuple[Array, Array | None, Cache]
"""What a layer hands to the next: rows, the sums of their squares where norms are folded, and the cache."""


def _at_layer(path: tuple, stack: Any, layer: Array) -> Any:
    """Return one layer's part of a stacked parameter: what multiplies, or an array."""
    return weight_of(stack).at_layer(layer) if path[-1] in PRODUCTS else layer_of(stack, layer)


def _layers_of(stack: nnx.Module) -> Callable[[Array], Any]:
    """Return what gives a layer of a stack by its number there."""
    graph, stacked = nnx.split(stack)

    def layer_at(number: Array) -> Any:
        flat = nnx.to_flat_state(stacked)
        weights = {path: leaf.replace(_at_layer(path, leaf.get_value(), number)) for path, leaf in flat}
        return nnx.merge(graph, nnx.from_flat_state(weights))

    return layer_at


def make_rotations(
    layers: Sequence[Layer], positions: Int32[Array, " tokens"]
) -> Callable[[Array], tuple[Float32[Array, "tokens head_dim"], Float32[Array, "tokens head_dim"]]]:
    """Return what gives a layer, by its number, its cosines and sines; there is a table for each kind of RoPE.

    Numbers count layers that attend. A layer without RoPE turns by no angle, which changes no value; neither do the
    elements that RoPE leaves out, which are the last of each half of a head (see `tensors`).
    """
    shape = len(positions), layers[0].heads.head_dim

    def widened(table: Array, fill: float) -> Array:
        halves = table.reshape(len(table), 2, -1)
        missing = shape[1] // 2 - halves.shape[2]
        return jnp.pad(halves, ((0, 0), (0, 0), (0, missing)), constant_values=fill).reshape(shape)

    def table(rope: RopeConfig | None) -> tuple[Array | float, Array | float]:
        if rope is None:
            return 1.0, 0.0
        inverse, factor = frequencies(rope)
        cos, sin = rotary_tables(positions, jnp.asarray(inverse), factor)
        return (cos, sin) if rope.head_dim == shape[1] else (widened(cos, 1.0), widened(sin, 0.0))

    with jax.named_scope("rotary_tables"):
        (first, _), *others = ((table(rope), numbers) for rope, numbers in rope_kinds(layers).items())

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
        count = len(attention_layers(config.layers))
        self.layers = nnx.vmap(lambda _: AttentionLayer(config, dtype, backend), axis_size=count, in_axes=0)(
            jnp.arange(count)
        )
        if recurrent := len(config.layers) - count:
            make = nnx.vmap(lambda _: RecurrentLayer(config, dtype, backend), axis_size=recurrent, in_axes=0)
            self.recurrent = make(jnp.arange(recurrent))
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
        recur: Recur | None = None,
    ) -> tuple[Float[Array, "rows embed"], Cache]:
        """Return the final-normed hidden states of some rows, and the cache. Rows of -1 fill up the others.

        `attend` and `recur` are told a layer's number among those of its kind. `recur` may be left out where no layer
        is recurrent.

        Rows of `PADDING` are zeros, unless a projection back to hidden states has a bias, and native products pass over
        those at the end. The last layer computes its output projection and its MLP for the chosen rows only, and its
        attention if the backend can.
        """
        rotations_of, attention_at = make_rotations(self.config.layers, positions), _layers_of(self.layers)
        before = recurrent_per_block(self.config.layers)
        if before and recur is None:
            raise ValueError("recur: the model has recurrent layers")

        def recurrences(x: Array, squares: Array | None, cache: Cache, block: Array) -> Carry:
            """Run the layers of a block before the one that attends."""
            for index in range(before):
                number = before * block + index
                x, squares, cache = _layers_of(self.recurrent)(number)(x, squares, recur, cache, number)
            return x, squares, cache

        def attention(x: Array, squares: Array | None, cache: Cache, block: Array, rows: Array | None = None) -> Carry:
            layer, rotations = attention_at(block), rotations_of(block)
            return layer(x, squares, rotations, attend, cache, block, rows)

        # Where weights are bits, so are activations between layers: XLA:CPU would convert them by a copy.
        kept = to_bits if self.embedding[...].dtype == jnp.uint16 else lambda x: x

        def step(carry: Carry, block: Array) -> tuple[Carry, None]:
            x, squares, cache = recurrences(from_bits(carry[0]), *carry[1:], block)
            x, squares, cache = attention(x, squares, cache, block)
            return (kept(x), squares, cache), None

        with jax.named_scope("embed"):
            x = gather_columns(from_bits(self.embedding[...][jnp.maximum(token_ids, 0)]))
            x = jnp.where((token_ids == PADDING)[:, None], 0, x)
            if self.config.embedding_scale is not None:
                x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        last = len(attention_layers(self.config.layers)) - 1
        with jax.named_scope("layers"):
            start = kept(x), squares_of(x, self.backend), cache
            (x, squares, cache), _ = lax.scan(step, start, jnp.arange(last))
            x, squares, cache = recurrences(from_bits(x), squares, cache, jnp.int32(last))
        with jax.named_scope("last_layer"):
            x, _, cache = attention(x, squares, cache, jnp.int32(last), rows)
        with jax.named_scope("final_norm"):
            return self.backend.rms_norm(x, self.norm[...], self.config.norm_epsilon), cache
