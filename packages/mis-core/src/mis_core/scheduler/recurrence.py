"""What recurrent layers need of a step: its chunks in the order of planning, and the states that they read and write.

Items read a state of their query by reference. A segment that goes on in a later step writes one (decision 50).
"""

from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Int32

from mis_core.ragged import offsets, ramp, rows_at
from mis_core.requests import ScoreRequest

CHUNK = 64
"""Tokens of a chunk, and of a page: a query's chunks begin at its pages."""

CARRIED = -1
"""In place of a slot: a chunk starts from the state that the chunk before it in the list left."""

EMPTY = -2
"""In place of a slot: a chunk starts from nothing, as the first of a sequence does."""

NO_SLOT = -3
"""In place of a slot: nobody needs the state after a chunk."""

STATES_AT_ONCE = 5
"""Most slots that a request for scores takes at once: three of its query, two of items longer than a step."""


MOST_COPIES = 2
"""Most states that a step copies: those of one query for its items, since one request at a time is spread."""


class StateCopy(NamedTuple):
    """A state that the shards of a spread request get from the one that has it, at the end of a step.

    Attributes:
        shard: Who has it.
        slot: Its slot there.
        copies: By shard that gets it, the slot there.
    """

    shard: int
    slot: int
    copies: dict[int, int]


class StateUse(NamedTuple):
    """Slots of states that segments of one context read and write.

    Attributes:
        reads: Slot of the state that each starts from, or `EMPTY`, `[segments]`.
        writes: For a single segment: how many of its tokens are before a state that it leaves, and the slot of it.
        copies: Which states other shards get.
    """

    reads: Int32[np.ndarray, " segments"]
    writes: tuple[tuple[int, int], ...] = ()
    copies: tuple[StateCopy, ...] = ()


class PlannedChunks(NamedTuple):
    """Chunks of a shard's segments in the order in which they are computed; see `mis_kernels.Chunks`.

    Attributes:
        rows: First row of each, `[chunks]`.
        lens: Rows of each, `[chunks]`.
        reads: Slot whose state each starts from, or `CARRIED` or `EMPTY`, `[chunks]`.
        writes: Slot that its state goes to, or `NO_SLOT`, `[chunks]`.
    """

    rows: Int32[np.ndarray, " chunks"]
    lens: Int32[np.ndarray, " chunks"]
    reads: Int32[np.ndarray, " chunks"]
    writes: Int32[np.ndarray, " chunks"]

    @classmethod
    def of_next_tokens(cls, slots: Int32[np.ndarray, " sequences"]) -> Self:
        """Return a chunk for each row of a decode step, whose state stays in its slot."""
        count = len(slots)
        return cls(np.arange(count, dtype=np.int32), np.ones(count, np.int32), slots, slots)


def chunks_of(start: int, lens: Int32[np.ndarray, " segments"], use: StateUse) -> PlannedChunks:
    """Cut segments that lie side by side into chunks, each segment from its own first token on.

    Args:
        start: First row of the first segment.
        lens: Tokens of each.
        use: What they read and write.
    """
    counts = -(-lens // CHUNK)
    within = ramp(counts)
    starts = start + np.cumsum(lens) - lens
    rows = np.repeat(starts, counts) + CHUNK * within
    reads = np.where(within == 0, np.repeat(use.reads, counts), CARRIED)
    writes = np.full(len(rows), NO_SLOT)
    for tokens, slot in use.writes:
        writes[-(-tokens // CHUNK) - 1] = slot
    most = np.minimum(np.repeat(lens, counts) - CHUNK * within, CHUNK)
    return PlannedChunks(*(x.astype(np.int32) for x in (rows, most, reads, writes)))


def joined_chunks(parts: list[PlannedChunks]) -> PlannedChunks:
    """Return the chunks of all parts, in their order."""
    none = np.zeros(0, np.int32)
    return (
        PlannedChunks(*(np.concatenate([none, *arrays]) for arrays in zip(*parts, strict=True)))
        if parts
        else (PlannedChunks(none, none, none, none))
    )


def begun_at_states(request: ScoreRequest) -> ScoreRequest:
    """Return the request with items that begin where its query has a state.

    That is at its end, before its last page, or at its beginning. Which of them it is follows from the query and where
    an item's own tokens begin, and not from other items.
    """
    length = len(request.query)
    before_last = max(length - 1, 0) // CHUNK * CHUNK  # chunks of a query are its pages
    context = request.context_lens
    begins = np.where(context == length, length, np.where(context >= before_last, before_last, 0)).astype(np.int32)
    repeated = context - begins
    if not repeated.any():
        return request
    lens = np.diff(request.item_starts)
    starts = offsets(lens + repeated)
    tokens = np.zeros(starts[-1], np.int32)
    own = np.repeat(starts[:-1] + repeated, lens) + ramp(lens)
    tokens[own] = rows_at(request.item_tokens, request.item_starts[:-1], lens)
    tokens[np.repeat(starts[:-1], repeated) + ramp(repeated)] = rows_at(request.query, begins, repeated)
    reads = None if request.read_at is None else request.read_at + np.repeat(repeated, np.diff(request.read_starts))
    return replace(
        request,
        item_tokens=tokens,
        item_starts=starts.astype(np.int32),
        context_lens=begins,
        read_at=None if reads is None else reads.astype(np.int32),
    )
