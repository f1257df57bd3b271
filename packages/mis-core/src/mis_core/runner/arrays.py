"""From the shards of a step plan to the arrays of the compiled step."""

import jax
import numpy as np

from mis_core.ragged import ramp
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, ShardPlan, StepPlan, StepShape
from mis_kernels import lay_out
from mis_kernels.backends import Backend, LaidOut, Limits

StepArrays = tuple[np.ndarray, np.ndarray, np.ndarray, LaidOut]
"""Token ids and positions `[devices, tokens]`, scored rows `[devices, scored]`, segments stacked by device."""


def step_arrays(backend: Backend, shape: StepShape, plan: StepPlan, tokens: int, scored: int) -> StepArrays:
    """Pad every shard of a plan to `tokens` rows and `scored` scored rows, and stack them.

    Args:
        backend: Who attends.
        shape: Room of a step.
        plan: The step.
        tokens: Size of the compiled step.
        scored: Its scored rows.
    """
    limits = Limits(shape.contexts, shape.pages_per_context * PAGE_SIZE, LONG_ITEM)
    capacity = backend.tile_capacity(tokens, limits)
    shards = [_shard_arrays(backend, capacity, shard, tokens, scored) for shard in plan.shards]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *shards)


def _shard_arrays(
    backend: Backend, capacity: tuple[int, ...], shard: ShardPlan, tokens: int, scored: int
) -> StepArrays:
    token_ids, positions, scored_rows = (np.zeros(size, np.int32) for size in (tokens, tokens, scored))
    rows = np.repeat(shard.starts, shard.lens) + ramp(shard.lens)
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
        backend=backend,
        tile_capacity=capacity,
    )
    return token_ids, positions, scored_rows, segments
