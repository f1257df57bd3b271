"""A decoder's layer that is recurrent: a gated delta net (arXiv 2412.06464) around a `recur` function.

Of a sequence it keeps a state of fixed size in place of keys and values (see `mis_kernels.recurrence`).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from mis_core.models.blocks import Block, Cache, Normed, weight, wide
from mis_core.models.config import ModelConfig
from mis_core.models.parallel import own_columns
from mis_kernels.backends import Backend
from mis_kernels.weights import materialised

Recur = Callable[[Array, Array, Array, Array, Cache, Array], tuple[Array, Cache]]
"""`(inputs, decay, rate, kernel, cache, number) -> (output, cache)`, as `mis_kernels.gated_delta` has the arrays.

`number` is the layer's among the recurrent ones.
"""

WIDE = ("convolution", "decay_log", "decay_bias", "state_norm")
"""Names of parameters that are float32 in memory, besides norms of the residual."""

_WHOLE_TILES = 32  # products with fewer columns, or a fraction, are never packed


class RecurrentLayer(Block):
    """Weights of one layer with a recurrent state.

    The columns of `qkvz` are the inputs of the convolution, queries, keys and values, and then the gate of the output:
    those of the heads of one device, then those of the next. The channels of `convolution` are in the same order. The
    columns of `rates` are each head's decay, then each head's learning rate, and zeros up to whole tiles; they are so
    few that every device has all of them.
    """

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, backend: Backend) -> None:
        super().__init__(config, dtype, backend)
        shape = config.recurrence
        assert shape is not None, "the model has no recurrent layers"
        values = shape.value_heads * shape.value_dim
        if not backend.folds_norms:
            self.recurrence_norm = wide(config.embed)
        self.qkvz = weight(dtype, config.embed, shape.channels + values)
        self.rates = weight(dtype, config.embed, rate_columns(shape.value_heads))
        self.convolution = wide(shape.channels, shape.taps)
        self.decay_log = wide(shape.value_heads)
        self.decay_bias = wide(shape.value_heads)
        self.state_norm = wide(shape.value_dim)
        self.out = weight(dtype, values, config.embed)

    def __call__(
        self,
        x: Float[Array, "tokens embed"],
        squares: Float32[Array, "tokens 1"] | None,
        recur: Recur,
        cache: Cache,
        number: Array,
    ) -> tuple[Float[Array, "tokens embed"], Float32[Array, "tokens 1"] | None, Cache]:
        """Run the layer on new tokens; `squares` as of `AttentionLayer`."""
        with jax.named_scope("recurrence"):
            normed = self.normed(x, squares, "recurrence_norm")
            with jax.named_scope("qkvz"):
                qkvz = materialised(self.qkvz.get_value().linear(normed.rows, norm=normed.norm))
            decay, rate = self._rates(normed)
            gate = qkvz[:, len(self.convolution[...]) :]
            output, cache = recur(qkvz, decay, rate, self.convolution[...], cache, number)
            gated = self._gated(output, gate)
            with jax.named_scope("out"):
                x = self.added(x, gated, "out")
        return *self.mlp(x), cache

    def _gated(
        self, output: Float32[Array, "tokens value_heads value_dim"], gate: Float[Array, "tokens values"]
    ) -> Float[Array, "tokens values"]:
        """Normalise each head's output, and let a gate through; rounded once."""
        with jax.named_scope("state_norm"):
            normed = self.backend.rms_norm(output, self.state_norm[...], self.config.norm_epsilon)
            gated = normed.reshape(gate.shape) * jax.nn.silu(gate.astype(jnp.float32))
            return materialised(gated.astype(gate.dtype))

    def _rates(self, normed: Normed) -> tuple[Float32[Array, "tokens heads"], Float32[Array, "tokens heads"]]:
        """Return the logarithm of what is left of each head's state after a token, and how fast it learns the token.

        Heads are those of this device.
        """
        with jax.named_scope("rates"):
            product = self.rates.get_value().linear(normed.rows, norm=normed.norm).astype(jnp.float32)
            heads = len(self.decay_log[...])  # of all devices
            decay, rate = product[:, :heads], product[:, heads : 2 * heads]
            decay = -jnp.exp(self.decay_log[...]) * jax.nn.softplus(decay + self.decay_bias[...])
            return own_columns(decay), own_columns(jax.nn.sigmoid(rate))


def rate_columns(value_heads: int) -> int:
    """Return the columns of the product that gives so many heads a decay and a learning rate each."""
    return -(-2 * value_heads // _WHOLE_TILES) * _WHOLE_TILES
