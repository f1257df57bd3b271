"""A decoder's layer that attends: projections, norms of heads and RoPE around an `attend` function."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from mis_core.models.blocks import Block, Cache, Normed, rows_of, weight, wide
from mis_core.models.config import ModelConfig
from mis_kernels.backends import Backend
from mis_kernels.operations import project
from mis_kernels.weights import HeadRotations, materialised

Attend = Callable[[Array, Array, Array, Cache, Array, Array | None], tuple[Array, Cache]]
"""`(q, k, v, cache, layer, rows) -> (output, cache)`: k and v are `[tokens, kv_heads, head_dim]`, q and output
`[tokens, heads, head_dim]`.

Only `rows` of the output are read; None: all of them.
"""


class AttentionLayer(Block):
    """Weights of one layer with attention.

    The columns of `qkv` keep a KV head, its query heads and its value head together, and so do the rows of
    `out`, so that sharding by KV head cuts one axis. The columns of `attention_gate` are in the order of these rows.
    """

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, backend: Backend) -> None:
        super().__init__(config, dtype, backend)
        _, kv_heads, head_dim = config.attention
        group, width = config.attention.group, kv_heads * head_dim
        if not backend.folds_norms:
            self.attention_norm = wide(config.embed)
        if config.family.norms_outputs:
            self.attention_out_norm = wide(config.embed)
        self.qkv = weight(dtype, config.embed, (group + 2) * width)
        if config.qkv_bias:
            self.qkv_bias = weight(dtype, kv_heads, group + 2, head_dim)
        if config.family.qk_norm:
            self.q_norm = wide(head_dim)
            self.k_norm = wide(head_dim)
        if config.family.gates_attention:
            self.attention_gate = weight(dtype, config.embed, group * width)
        self.out = weight(dtype, group * width, config.embed)
        if config.attention_bias:
            self.out_bias = weight(dtype, config.embed)

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
            normed = self.normed(x, squares, "attention_norm")
            q, k, v = self._project(normed, tables)
            attended, cache = attend(q, k, v, cache, layer, rows)
            attended = attended.reshape(len(x), -1)
            if rows is not None:
                x, attended = rows_of(x, rows), rows_of(attended, rows)
            if self.config.family.gates_attention:
                attended = self._gated(attended, normed if rows is None else normed.of_rows(rows))
            with jax.named_scope("out"):
                bias = self.out_bias[...] if self.config.attention_bias else None
                x = self.added(x, attended, "out", bias)
        return *self.mlp(x), cache

    def _gated(self, attended: Array, normed: Normed) -> Array:
        with jax.named_scope("gate"):
            gate = self.attention_gate.get_value().linear(normed.rows, norm=normed.norm)
            gated = attended.astype(jnp.float32) * jax.nn.sigmoid(gate.astype(jnp.float32))
            return materialised(gated.astype(attended.dtype))

    def _project(self, normed: Normed, tables: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        config = self.config
        norms = (self.q_norm[...], self.k_norm[...]) if config.family.qk_norm else (None, None)
        rotations = HeadRotations(*tables, *norms, config.norm_epsilon)
        bias = self.qkv_bias[...] if config.qkv_bias else None
        return project(normed.rows, self.qkv.get_value(), rotations, bias, normed.norm, backend=self.backend)
