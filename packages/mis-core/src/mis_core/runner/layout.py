"""From the shards of a step plan to the arrays of the compiled step."""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from mis_core.models.config import ModelConfig
from mis_core.models.parallel import TENSOR
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, ShardPlan, StepPlan, StepShape
from mis_kernels import Segments, cache_head_dim, device_blocks, lay_out, tile_capacity
from mis_kernels.backends.native.attention import is_available
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_kernels.backends.xla.tiles import CONTEXT_TILE, OWN_BLOCK, OWN_TILE, row_block

_XLA_ALIGNMENT = 256

StepArrays = tuple[np.ndarray, np.ndarray, np.ndarray, Segments]
"""Token ids and positions `[devices, tokens]`, scored rows `[devices, scored]`, segments stacked by device."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """Lays out steps for the attention implementation of a device.

    Attributes:
        shape: Room of a step.
        blocks: Block sizes of the TPU kernel, or None elsewhere.
        native: Whether attention runs in the native kernel for CPUs, which needs no tile lists.
    """

    shape: StepShape
    blocks: TpuBlocks | None
    native: bool

    @classmethod
    def of_model(cls, config: ModelConfig, dtype: jnp.dtype, mesh: Mesh, shape: StepShape) -> Self:
        """Choose for a model whose heads are cut over a mesh."""
        return cls(shape, _blocks(config, dtype, mesh), is_available(dtype, config.head_dim))

    @staticmethod
    def alignment(config: ModelConfig, dtype: jnp.dtype, mesh: Mesh) -> int:
        """Return how many rows visit contexts together, so that segments of different contexts keep apart."""
        if is_available(dtype, config.head_dim):
            return 1
        blocks = _blocks(config, dtype, mesh)
        return _XLA_ALIGNMENT if blocks is None else blocks.tokens

    def lay_out(self, plan: StepPlan, tokens: int, scored: int) -> StepArrays:
        """Pad every shard to `tokens` rows and `scored` scored rows, and stack them."""
        shards = [self._lay_out(shard, tokens, scored) for shard in plan.shards]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *shards)

    def _lay_out(self, shard: ShardPlan, tokens: int, scored: int) -> StepArrays:
        rows = np.repeat(shard.starts, shard.lens) + _ramp(shard.lens)
        token_ids, positions, scored_rows = (
            np.zeros(tokens, np.int32),
            np.zeros(tokens, np.int32),
            np.zeros(scored, np.int32),
        )
        token_ids[rows], positions[rows] = shard.token_ids, shard.positions
        scored_rows[: len(shard.scored_rows)] = shard.scored_rows
        segments = lay_out(
            starts=shard.starts,
            lens=shard.lens,
            context_ids=shard.context_ids,
            context_lens=shard.context_lens,
            paged=shard.paged,
            page_table=shard.page_table,
            page_size=PAGE_SIZE,
            tokens=tokens,
            tile_capacity=self._tiles(tokens),
            own_rank_capacity=2 * (OWN_BLOCK + LONG_ITEM) // OWN_TILE,
            blocks=self.blocks,
            tiled=not self.native,
        )
        return token_ids, positions, scored_rows, segments

    def _tiles(self, tokens: int) -> int:
        context_tokens = self.shape.pages_per_context * PAGE_SIZE
        if self.blocks is not None:
            return tile_capacity(tokens, context_tokens, self.blocks)
        blocks = tokens // row_block(tokens)
        contexts = min(self.shape.contexts, -(-tokens // blocks // _XLA_ALIGNMENT) + 1)
        return blocks * contexts * -(-context_tokens // CONTEXT_TILE)


def _blocks(config: ModelConfig, dtype: jnp.dtype, mesh: Mesh) -> TpuBlocks | None:
    devices = mesh.shape[TENSOR]
    heads, kv_heads = config.heads // devices, config.kv_heads // devices
    return device_blocks(
        heads=heads, kv_heads=kv_heads, head_dim=cache_head_dim(config.head_dim), dtype=str(jnp.dtype(dtype))
    )


def _ramp(lens: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lens)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lens, lens)
