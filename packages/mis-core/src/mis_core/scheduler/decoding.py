"""Decode steps: a row for each sequence that has a slot."""

from collections.abc import Sequence

import numpy as np

from mis_core.scheduler.homes import Decodes, Home
from mis_core.scheduler.plan import PAGE_SIZE, SLOTS, ShardPlan, StepPlan, StepShape
from mis_core.scheduler.reading import Reading
from mis_core.scheduler.recurrence import PlannedChunks


def plan_decoding(homes: Sequence[Home], shape: StepShape) -> StepPlan | None:
    """Plan a row for each sequence that wants a token and has a page for it, or return None if none does."""
    rows = [[home.slots[slot] for slot in sorted(home.slots) if home.slots[slot].wants_token] for home in homes]
    if not any(rows):
        return None
    readings: list[Reading] = []
    shards = tuple(_shard_plan(home.shard, mine, shape, readings) for home, mine in zip(homes, rows, strict=True))
    return StepPlan(shards, tuple(readings), is_decoding=True)


def _shard_plan(shard: int, sequences: list[Decodes], shape: StepShape, readings: list[Reading]) -> ShardPlan:
    table = np.zeros((SLOTS, shape.pages_per_context), np.int32)
    for row, sequence in enumerate(sequences):
        pages = sequence.pages
        table[row, : len(pages)] = pages
    positions = np.array([sequence.decode() for sequence in sequences], np.int32)
    count = len(sequences)
    rows, one = np.arange(count, dtype=np.int32), np.zeros(1, np.int32)
    states = [sequence.state for sequence in sequences if sequence.state is not None]
    readings += [sequence.reading(one, shard=shard, first=row) for row, sequence in enumerate(sequences)]
    return ShardPlan(
        token_ids=np.array([sequence.slot for sequence in sequences], np.int32),
        positions=positions,
        starts=rows,
        lens=np.ones(count, np.int32),
        context_ids=rows,
        context_lens=positions,
        paged=np.ones(count, bool),
        page_table=table,
        scored_rows=rows,
        chunks=PlannedChunks.of_next_tokens(np.array(states, np.int32)) if states else None,
    )


def written_pages(plan: ShardPlan) -> np.ndarray:
    """Return the page that each row of a decode step's shard is written to, `[segments]`."""
    return plan.page_table[plan.context_ids, plan.context_lens // PAGE_SIZE]
