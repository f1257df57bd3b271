"""From the shards of a step plan to the arrays of the compiled step."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int32

import mis_kernels
from mis_core.models.decoder import PADDING
from mis_core.ragged import ramp
from mis_core.runner.copies import StateCopies
from mis_core.scheduler.decoding import written_pages
from mis_core.scheduler.plan import EXCHANGED, KEPT, PAGE_SIZE, SLOTS, ShardPlan, StepPlan, StepShape
from mis_core.scheduler.recurrence import CARRIED, CHUNK, EMPTY, NO_SLOT, joined_chunks
from mis_kernels import Chunks, lay_out
from mis_kernels.backends import Backend, LaidOut, StepLimits, stacked
from mis_kernels.segments import NO_WINDOW, NOWHERE, IntArray


class StepArrays(NamedTuple):
    """What a step takes besides weights and cache: a row for each device, or one row inside the step.

    Attributes:
        token_ids: New tokens, `[devices, tokens]`; `PADDING` of rows that nobody reads.
        positions: Their positions, `[devices, tokens]`.
        scored_rows: Rows whose hidden states are returned, `[devices, scored]`; -1 fills.
        segments: What the tokens see, and where those of this device go, stacked by device. Where layers slide, lists
            of tiles and windows have an axis of these behind that of devices, see `LaidOut.of_window`.
        exchanged_writes: Pages of this device that runs of all others go to, by device that computes them,
            `[devices, devices, runs]`.
        exchanges: How many times `EXCHANGED` rows are exchanged, `[devices]`; the same for all devices, 0 without a
            spread request.
        chunks: What recurrent layers compute, stacked by device; None: no layer is recurrent, or it is a decode step.
        states: In a decode step of recurrent layers, the slot of each row's state, `[devices, tokens]`, or `NOWHERE`.
        copies: States that go to other devices; None: no layer is recurrent, there is one device, or it is a decode
            step.
    """

    token_ids: IntArray
    positions: IntArray
    scored_rows: IntArray
    segments: LaidOut
    exchanged_writes: IntArray
    exchanges: IntArray
    chunks: Chunks | None = None
    states: IntArray | None = None
    copies: StateCopies | None = None


def step_arrays(
    backend: Backend,
    shape: StepShape,
    plan: StepPlan,
    tokens: int,
    scored: int,
    windows: Sequence[int | None] = (),
    *,
    is_recurrent: bool = False,
) -> StepArrays:
    """Pad every shard of a plan to `tokens` rows and `scored` scored rows, and stack them.

    Args:
        backend: Who attends; how it lays the step out follows from the plan.
        shape: Room of a step of this kind.
        plan: The step.
        tokens: Size of the compiled step.
        scored: Its scored rows.
        windows: Those of the model's layers, see `windows_of`.
        is_recurrent: Whether some of these layers are recurrent.
    """
    contexts, longest = (SLOTS, 1) if plan.is_decoding else (shape.contexts, shape.longest_item)
    most_tiles = None if plan.is_decoding or shape.tiles is None else shape.tiles.most
    limits = StepLimits(contexts, shape.pages_per_context * PAGE_SIZE, longest, plan.is_decoding, most_tiles)
    if plan.is_decoding or plan.is_mixed:
        backend = backend.for_decoding() if plan.is_decoding else backend.for_mixed_steps()
    capacity = backend.tile_capacity(tokens, limits)
    writes = _page_writes(plan, tokens)
    devices = np.arange(len(plan.shards))
    own = _row_writes(plan, tokens) if plan.is_decoding else writes[devices, devices]
    writes[devices, devices] = NOWHERE
    shards = [
        _shard_arrays(backend, capacity, shard, pages, tokens, scored, windows)
        for shard, pages in zip(plan.shards, own, strict=True)
    ]
    token_ids, positions, scored_rows, segments = jax.tree.map(lambda *arrays: np.stack(arrays), *shards)
    copies = StateCopies.of(plan) if is_recurrent and len(devices) > 1 and not plan.is_decoding else None
    return StepArrays(
        token_ids,
        positions,
        scored_rows,
        segments,
        writes,
        np.full(len(devices), -(-plan.exchanged_rows // EXCHANGED), np.int32),
        _chunks(plan, tokens) if is_recurrent and not plan.is_decoding else None,
        _states(plan, tokens) if is_recurrent and plan.is_decoding else None,
        copies,
    )


def _chunks(plan: StepPlan, tokens: int) -> Chunks:
    """Return the chunks of every shard; there are at most as many as tokens."""
    shards = [shard.chunks or joined_chunks([]) for shard in plan.shards]
    padded = [[np.pad(part, (0, tokens - len(part))) for part in shard] for shard in shards]
    rows, lens, reads, writes = (np.stack(parts) for parts in zip(*padded, strict=True))
    assert (CARRIED, EMPTY, CHUNK) == (mis_kernels.CARRIED, mis_kernels.EMPTY, mis_kernels.CHUNK)
    writes = np.where(writes == NO_SLOT, NOWHERE, writes).astype(np.int32)
    return Chunks(rows, lens, reads, writes, np.array([len(shard.rows) for shard in shards], np.int32))


def _states(plan: StepPlan, tokens: int) -> Int32[np.ndarray, "devices tokens"]:
    """Return the slot of the state of each row of a decode step."""
    slots = np.full((len(plan.shards), tokens), NOWHERE, np.int32)
    for own, shard in zip(slots, plan.shards, strict=True):
        if shard.chunks is not None:
            own[: len(shard.chunks.reads)] = shard.chunks.reads
    return slots


def _page_writes(plan: StepPlan, tokens: int) -> Int32[np.ndarray, "devices devices runs"]:
    """Return for every device the pages there that each run of every device's rows goes to."""
    devices = len(plan.shards)
    writes = np.full((devices, devices, tokens // PAGE_SIZE), NOWHERE, np.int32)
    for each in plan.writes:
        first = each.start // PAGE_SIZE
        for device, pages in each.pages.items():
            writes[device, each.shard, first : first + len(pages)] = np.where(pages == KEPT, NOWHERE, pages)
    return writes


def _row_writes(plan: StepPlan, tokens: int) -> Int32[np.ndarray, "devices tokens"]:
    """Return the page of each device that each of its rows goes to."""
    writes = np.full((len(plan.shards), tokens), NOWHERE, np.int32)
    for device, shard in enumerate(plan.shards):
        writes[device, shard.starts] = written_pages(shard)
    return writes


def _shard_arrays(
    backend: Backend,
    capacity: tuple[int, ...],
    shard: ShardPlan,
    page_writes: np.ndarray,
    tokens: int,
    scored: int,
    windows: Sequence[int | None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, LaidOut]:
    token_ids = np.full(tokens, PADDING, np.int32)
    positions, scored_rows = np.zeros(tokens, np.int32), np.full(scored, -1, np.int32)
    rows = np.repeat(shard.starts, shard.lens) + ramp(shard.lens)
    token_ids[rows], positions[rows] = shard.token_ids, shard.positions
    scored_rows[: len(shard.scored_rows)] = shard.scored_rows
    laid_out = partial(
        lay_out,
        starts=shard.starts,
        lens=shard.lens,
        context_ids=shard.context_ids,
        context_lens=shard.context_lens,
        paged=shard.paged,
        page_table=shard.page_table[:tokens],  # each context has a row at least
        page_size=PAGE_SIZE,
        tokens=tokens,
        backend=backend,
        tile_capacity=capacity,
        page_writes=page_writes,
    )
    segments = laid_out() if not windows else stacked([laid_out(window=window or NO_WINDOW) for window in windows])
    return token_ids, positions, scored_rows, segments
