"""What the layers of a decoder share: the residual, the norms around it, and the MLP.

Products take operands of the model's type and accumulate in float32; norms are float32. A layer runs on one device's
share of the weights, inside a `shard_map` with the axis `TENSOR` (see `parallel`): every product over a cut dimension
is followed by a sum over that axis.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int32, Shaped

from mis_core.models.config import ModelConfig
from mis_core.models.parallel import add_product, whole_product
from mis_kernels.backends import Backend
from mis_kernels.weights import FoldedNorm, materialised

Cache = Any
"""What a model keeps of tokens: any pytree that layers take and return."""

NORMS = (
    "attention_norm", "attention_out_norm", "recurrence_norm", "mlp_norm", "mlp_out_norm", "q_norm", "k_norm", "norm",
)  # fmt: skip
"""Names of norms' weights, which are float32 in memory."""

NORM_OF = {
    "qkv": "attention_norm", "attention_gate": "attention_norm", "gate_up": "mlp_norm",
    "qkvz": "recurrence_norm", "rates": "recurrence_norm",
}  # fmt: skip
"""The norm in front of a product, whose weights are multiplied into the product's by backends that fold norms."""

_NORM_AFTER = {"out": "attention_out_norm", "down": "mlp_out_norm"}


class Normed(NamedTuple):
    """What a product behind a norm takes: normalised rows; or rows as they are, and the norm that they lack."""

    rows: Array
    norm: FoldedNorm | None

    def of_rows(self, rows: Int32[Array, " rows"]) -> "Normed":
        """Return some of the rows, as `rows_of`."""
        norm = None if self.norm is None else self.norm._replace(squares=rows_of(self.norm.squares, rows))
        return Normed(rows_of(self.rows, rows), norm)


def rows_of(x: Shaped[Array, "tokens width"], rows: Int32[Array, " rows"]) -> Shaped[Array, "rows width"]:
    """Return some rows of an array, and zeros for rows of -1, which native products pass over if they are last."""
    return jnp.where(rows[:, None] < 0, 0, x[rows])


def weight(dtype: jnp.dtype, *shape: int) -> nnx.Param:
    """Declare a weight of the model's type."""
    return nnx.Param(jnp.zeros(shape, dtype))


def wide(*shape: int) -> nnx.Param:
    """Declare a parameter that is float32 whatever the model's type is, as norms are."""
    return nnx.Param(jnp.zeros(shape, jnp.float32))


class Block(nnx.Module):
    """A layer's MLP, and what the other half of the layer shares with it; `Decoder` holds layers of a kind stacked.

    Weights have the two dimensions of their product last: TPUs would copy others into another order in every step.
    """

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, backend: Backend) -> None:
        self.config, self.backend = config, backend
        if not backend.folds_norms:
            self.mlp_norm = wide(config.embed)
        if config.family.norms_outputs:
            self.mlp_out_norm = wide(config.embed)
        self.gate_up = weight(dtype, 2, config.embed, config.mlp)
        self.down = weight(dtype, config.mlp, config.embed)
        if config.mlp_bias:
            self.gate_up_bias = weight(dtype, 2, config.mlp)
            self.down_bias = weight(dtype, config.embed)

    def mlp(self, x: Float[Array, "rows embed"]) -> tuple[Float[Array, "rows embed"], Float32[Array, "rows 1"] | None]:
        """Add the MLP to the residual; return its rows and, where norms are folded, the sums of their squares."""
        with jax.named_scope("mlp"):
            normed = self.normed(x, squares_of(x, self.backend), "mlp_norm")
            with jax.named_scope("gate_up"):
                bias = self.gate_up_bias[...] if self.config.mlp_bias else None
                pair, gate = self.gate_up.get_value(), self.config.family.gate
                gated = materialised(pair.gated_linear(normed.rows, bias, normed.norm, gate))
            with jax.named_scope("down"):
                bias = self.down_bias[...] if self.config.mlp_bias else None
                x = self.added(x, gated, "down", bias)
            return x, squares_of(x, self.backend)

    def added(self, residual: Array, x: Array, name: str, bias: Array | None = None) -> Array:
        """Add a product to the residual; normalise it first where the family does so."""
        weight = getattr(self, name).get_value()
        if not self.config.family.norms_outputs:
            return add_product(residual, x, weight, bias)
        product = whole_product(x, weight)
        product = product if bias is None else product + bias
        with jax.named_scope("norm"):
            norm = getattr(self, _NORM_AFTER[name])[...]
            return residual + self.backend.rms_norm(product, norm, self.config.norm_epsilon)

    def normed(self, x: Array, squares: Array | None, name: str) -> Normed:
        """Return the residual as a product takes it behind a norm.

        Args:
            x: The residual.
            squares: Sums of its rows' squares where norms are folded, else None.
            name: The norm's weights, where they are not folded.
        """
        with jax.named_scope("norm"):
            if squares is not None:
                return Normed(x, FoldedNorm(squares, self.config.norm_epsilon))
            weight = getattr(self, name)[...]
            return Normed(materialised(self.backend.rms_norm(x, weight, self.config.norm_epsilon)), None)


def squares_of(x: Float[Array, "tokens embed"], backend: Backend) -> Float32[Array, "tokens 1"] | None:
    """Return the sum of each row's squares where norms are folded; None elsewhere."""
    if not backend.folds_norms:
        return None
    wide = x.astype(jnp.float32)
    return (wide * wide).sum(-1, keepdims=True)
