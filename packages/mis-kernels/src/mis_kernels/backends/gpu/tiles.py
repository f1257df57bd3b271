"""What each block of rows visits on a GPU: contexts from the first tile that some row sees, and tiles of its own keys.

A program of the kernel has one KV head and a block of new tokens with all their query heads. It visits every context
that one of its rows sees, at positions that are multiples of `KEYS`, however long it is: so the number of launches
depends on neither. Own tiles are those of plain XLA, whose alignment lets no neighbour change a sum (see
`backends.xla.tiles`).
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from mis_kernels.backends.laid_out import StepLimits
from mis_kernels.backends.xla.tiles import fit, own_tiles
from mis_kernels.heads import HeadShape
from mis_kernels.segments import MIN_TOKENS, IntArray, Segments

KEYS = 64
"""Keys of a tile: cached tokens at absolute positions, or own keys."""

ROWS = 64
"""Most rows of a program, query heads of a KV head times new tokens. With 128, registers spill or programs lack company
on their multiprocessor (report of 2026-11-27)."""

LEAST_ROWS = 16
"""Matrix units take no fewer."""


class GpuBlocks(NamedTuple):
    """What a program computes.

    Attributes:
        tokens: New tokens; divides every step.
        members: Query heads of a KV head, rounded up to a power of two: a block's shape is made of those.
    """

    tokens: int
    members: int

    @property
    def rows(self) -> int:
        """Rows of a program; those past `tokens * members` compute nothing that is kept."""
        return max(LEAST_ROWS, self.tokens * self.members)

    @classmethod
    def of(cls, heads: HeadShape) -> "GpuBlocks":
        """Return the blocks of a model with such heads on a device."""
        members = 1 << (heads.group - 1).bit_length()
        return cls(min(MIN_TOKENS, max(1, ROWS // members)), members)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GpuTiles:
    """Lists of what is visited; entries past the last start are padding.

    Attributes:
        starts: Block `b` visits `starts[b]` to `starts[b + 1]`, `[blocks + 1]`.
        context_id: Context of each visit, `[visits]`.
        first: Tile of that context with the first token that some row of the block sees, `[visits]`.
        reach: Tokens of that context up to the last that some row of the block sees, at least 1, `[visits]`.
        shared_first: The first tile of that context that every row of the block sees whole, `[visits]`.
        shared: The tile behind the last such one; `shared_first` if there is none, `[visits]`.
        own_ranks: Own tiles of each block, `[blocks]`.
        own_shared: Own tiles of each block that every row of it sees whole, its first ones, `[blocks]`.
        own_keys: New-token index of each key in a block's n-th own tile, or -1, `[ranks, blocks, KEYS]`.
        blocks: What a program computes (static).
    """

    starts: IntArray
    context_id: IntArray
    first: IntArray
    reach: IntArray
    shared_first: IntArray
    shared: IntArray
    own_ranks: IntArray
    own_shared: IntArray
    own_keys: IntArray
    blocks: GpuBlocks = dataclasses.field(metadata={"static": True})


def tile_capacity(tokens: int, limits: StepLimits, blocks: GpuBlocks) -> tuple[int, int]:
    """Return how many visits, and how many own tiles of one block, a step within the limits may need.

    A visit is of a tile at least, so the step has no more of them than `StepLimits.context_tiles`.
    """
    visits = tokens // blocks.tokens * min(limits.contexts, blocks.tokens)
    visits = visits if limits.context_tiles is None else min(visits, limits.context_tiles)
    # A segment takes less than twice its keys, see `own_tiles`.
    return visits, -(-2 * (blocks.tokens + limits.segment_tokens) // KEYS)


def build_tiles(segments: Segments, blocks: GpuBlocks, capacity: tuple[int, ...] | None = None) -> GpuTiles:
    """List what blocks visit.

    Args:
        segments: Host arrays.
        blocks: What a program computes.
        capacity: Most visits, and most own tiles of one block; default: as many as there are.

    Raises:
        ValueError: more are needed than the given capacity, or blocks do not divide the step.
    """
    tokens = segments.num_tokens
    if tokens % blocks.tokens:
        raise ValueError(f"tokens: {tokens} are not a multiple of a block's {blocks.tokens}")
    most_visits, most_ranks = (None, None) if capacity is None else capacity
    starts, *visits = _visits(segments, blocks.tokens)
    own_keys = own_tiles(segments, blocks.tokens, KEYS)
    # Tiles of a block are filled one after the other, so those with a key are its first.
    own_ranks = (own_keys >= 0).any(2).sum(0).astype(np.int32)
    own_shared = _seen_by_all(own_keys, np.asarray(segments.own_first), blocks.tokens)
    context_id, first, reach, shared_first, shared = (
        fit(array, most_visits, "visits of contexts", 0) for array in visits
    )
    own_keys = fit(own_keys, most_ranks, "own tiles of a block", -1)
    return GpuTiles(starts, context_id, first, reach, shared_first, shared, own_ranks, own_shared, own_keys, blocks)


def _visits(segments: Segments, tokens: int) -> tuple[np.ndarray, ...]:
    """Return the first visit of each block; then the fields of `GpuTiles` from `context_id` to `shared`."""
    facts = segments.context_id, segments.context_first, segments.context_len
    context_id, context_first, context_len = map(np.asarray, facts)
    rows = np.flatnonzero(context_len > context_first)
    contexts = int(context_id.max(initial=0)) + 1
    pairs, inverse = np.unique((rows // tokens).astype(np.int64) * contexts + context_id[rows], return_inverse=True)
    none, most = np.zeros(len(pairs), np.int64), np.full(len(pairs), np.iinfo(np.int64).max)
    reach, latest_first, least, first = none.copy(), none.copy(), most.copy(), most.copy()
    np.maximum.at(reach, inverse, context_len[rows])
    np.minimum.at(least, inverse, context_len[rows])
    np.maximum.at(latest_first, inverse, context_first[rows])
    np.minimum.at(first, inverse, context_first[rows])
    is_whole = np.bincount(inverse, minlength=len(pairs)) == tokens
    shared_first = np.minimum(-(-latest_first // KEYS), -(-reach // KEYS))
    shared = np.maximum(np.where(is_whole, least // KEYS, 0), shared_first)
    starts = np.searchsorted(pairs // contexts, np.arange(len(context_id) // tokens + 1))
    return tuple(
        array.astype(np.int32) for array in (starts, pairs % contexts, first // KEYS, reach, shared_first, shared)
    )


def _seen_by_all(own_keys: np.ndarray, own_first: np.ndarray, tokens: int) -> np.ndarray:
    """Return how many of each block's own tiles every row sees whole; keys of such a tile lie one after the other."""
    first = np.arange(0, len(own_first), tokens)
    latest_start = own_first.reshape(-1, tokens).max(1)
    whole = (own_keys >= latest_start[:, None]) & (own_keys <= first[:, None])
    return np.cumprod(whole.all(2), axis=0).sum(0).astype(np.int32)
