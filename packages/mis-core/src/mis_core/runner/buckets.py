"""The few sizes that steps and heads are compiled for."""

import numpy as np

from mis_core.scheduler.plan import PAGE_SIZE, SLOTS, STEP_MULTIPLE, ShardPlan, StepPlan, StepShape, TileBudget
from mis_kernels.backends import Backend
from mis_kernels.segments import MIN_TOKENS

PAIRS = 1024
"""(row, label) pairs of one call of the label head, on each device along `data`."""


def step_shape(backend: Backend, tokens: int, *, pages_per_context: int, shards: int, longest_item: int) -> StepShape:
    """Return the room of steps of so many tokens on each device.

    Args:
        backend: Who attends.
        tokens: Most new tokens of a device.
        pages_per_context: Longest context, in pages.
        longest_item: Longest item, in tokens, that a step takes whole.
        shards: Devices along the `data` axis.
    """
    scored, tiles, mixed = max(STEP_MULTIPLE, tokens // 8), None, None
    if backend.context_tile is not None:
        rows, keys = backend.context_tile
        longest = -(-pages_per_context * PAGE_SIZE // keys)
        # Each block may visit a context for each of its rows, up to a page of them, or two of the longest: more waits
        # for the next step.
        tiles = TileBudget(rows, keys, -(-tokens // rows) * max(min(rows, PAGE_SIZE), 2 * longest))
    if backend.mixed_context:
        pages = min(backend.mixed_context // PAGE_SIZE, pages_per_context)
        mixed = step_shape(
            backend.for_mixed_steps(), tokens, pages_per_context=pages, shards=shards, longest_item=longest_item
        )
    return StepShape(
        tokens, scored, backend.contexts, pages_per_context, longest_item, backend.alignment, shards, tiles, mixed
    )


def token_buckets(budget: int) -> list[int]:
    """Return the step sizes to compile: powers of two, one and a half times those from 512 on, and the budget."""
    powers = [MIN_TOKENS << n for n in range(20) if MIN_TOKENS << n < budget]
    between = [power * 3 // 2 for power in powers if power >= 2 * STEP_MULTIPLE and power * 3 // 2 < budget]
    return sorted([*powers, *between, budget])


def full_step(shape: StepShape, context: int, item: int, *, is_mixed: bool = False) -> StepPlan:
    """Plan a step full of items behind one cached query on every device.

    Args:
        shape: Room of a step.
        context: Tokens of the query; 0: none, which fits however short the longest context is.
        item: Tokens of an item.
        is_mixed: Whether the room is that of mixed steps.
    """
    count = min(shape.tokens // item, shape.scored)
    ints = np.arange(count, dtype=np.int32)
    table = np.zeros((shape.contexts, shape.pages_per_context), np.int32)
    used = -(-context // PAGE_SIZE)
    table[0, :used] = np.arange(used)
    shard = ShardPlan(
        token_ids=np.zeros(count * item, np.int32),
        positions=(context + np.tile(np.arange(item), count)).astype(np.int32),
        starts=ints * item,
        lens=np.full(count, item, np.int32),
        context_ids=np.zeros(count, np.int32),
        context_lens=np.full(count, context, np.int32),
        paged=np.zeros(count, bool),
        page_table=table,
        scored_rows=ints * item + item - 1,
    )
    return StepPlan((shard,) * shape.shards, (), is_mixed=is_mixed)


def empty_decode_step(shape: StepShape) -> StepPlan:
    """Plan a decode step in which nobody has a slot."""
    shard = _empty(SLOTS, shape.pages_per_context)
    return StepPlan((shard,) * shape.shards, (), is_decoding=True)


def empty_dense_step(shape: StepShape, pages: int) -> StepPlan:
    """Plan a step with dense masks that has room for contexts of so many pages, and computes nothing."""
    return StepPlan((_empty(shape.contexts, pages),) * shape.shards, (), dense_mask=True)


def _empty(contexts: int, pages: int) -> ShardPlan:
    none, table = np.zeros(0, np.int32), np.zeros((contexts, pages), np.int32)
    return ShardPlan(none, none, none, none, none, none, none.astype(bool), table, none)
