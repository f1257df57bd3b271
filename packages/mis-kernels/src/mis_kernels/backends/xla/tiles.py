"""Tile lists: the parts of the two intervals that a blocked backend has to visit.

Context tiles are runs of `CONTEXT_TILE` cached tokens at absolute positions; a block of `ROW_BLOCK` new tokens visits
the tiles that any of its rows sees, one after the other. Runs of `side_by_side` blocks visit theirs together: first the
first tile of each, then the second, and so on. Blocks with about as many tiles are in the same run. A tile of which a
row sees nothing leaves the row's state bit for bit, so segments of any contexts may lie in one block.

Own tiles hold the keys of the segments that cross a block of `OWN_BLOCK` new tokens.

In an own tile every segment begins at a multiple of a power of two that holds it ("buddy"
alignment, as in Knowlton's buddy allocator, CACM 8(10), 1965). A matrix product sums over keys in
some tree whose shape is a power of two at every level; so aligned, a segment's keys meet in the same
sub-tree wherever the segment lies, its neighbours add exact zeros, and the sum has the same bits.
Without it, one neighbour more or less shifts the keys and changes the last bit (seen on XLA:CPU).
"""

import dataclasses
import math

import jax
import numpy as np

from mis_kernels.backends.laid_out import StepLimits
from mis_kernels.segments import MIN_TOKENS, IntArray, Segments, ramp

ROW_BLOCK = MIN_TOKENS
CONTEXT_TILE = 512
WIDTHS = (64, 256, CONTEXT_TILE)
"""Keys with which the rows of a visit are multiplied: those behind the used ones add exact zeros, and change no bit."""

SHARED = len(WIDTHS)
"""Kind of a visit whose rows are all multiplied with one tile, at once."""

OWN_BLOCK = 128
OWN_TILE = 128

_MOST_ROWS = 1024
"""Rows that are visited side by side: large products suffer least from what XLA:CPU spends between two operations."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockTiles:
    """Tile lists in the order they are visited; visits past the last start are padding.

    Attributes:
        order: The blocks, those with most context tiles first, `[blocks]`.
        rank: Where each block is in that order, `[blocks]`.
        starts: Visits of the n-th run of `side_by_side` blocks in that order are `starts[n]` to `starts[n + 1]`,
            `[runs + 1]`.
        kind: Which of `WIDTHS` holds the used tokens of all tiles of a visit; `SHARED` if that is all of them, and all
            blocks that have a tile have the same one, `[visits]`.
        context_id: Context of each block's tile, `[visits, side_by_side]`.
        index: Which run of `CONTEXT_TILE` tokens of that context it is, `[visits, side_by_side]`.
        used: Tokens of it up to the last that some row of the block sees, 0 where the block has no tile left,
            `[visits, side_by_side]`.
        fullest: Which block of a visit uses most of its tile, `[visits]`.
        own_ranks: Own tiles of that block of each run of own-blocks side by side that has most, `[runs]`.
        own_keys: New-token index of each key in a block's n-th own tile, or -1,
            `[ranks, own_blocks, OWN_TILE]`.
    """

    order: IntArray
    rank: IntArray
    starts: IntArray
    kind: IntArray
    context_id: IntArray
    index: IntArray
    used: IntArray
    fullest: IntArray
    own_ranks: IntArray
    own_keys: IntArray


def side_by_side(tokens: int) -> int:
    """Return how many blocks of a step of `tokens` are visited side by side: the largest part of them that may be."""
    blocks = tokens // ROW_BLOCK
    return max(count for count in range(1, _MOST_ROWS // ROW_BLOCK + 1) if blocks % count == 0)


def own_block(tokens: int) -> int:
    """Return how many new tokens of a step of `tokens` share a list of own keys."""
    return math.gcd(OWN_BLOCK, side_by_side(tokens) * ROW_BLOCK)


def tile_capacity(tokens: int, limits: StepLimits) -> tuple[int, int]:
    """Return how many visits, and how many own tiles of one block, a step within the limits may need."""
    blocks, together = tokens // ROW_BLOCK, side_by_side(tokens)
    # The first block of a run has most tiles, and the run as many visits.
    longest = min(limits.contexts, ROW_BLOCK) * -(-limits.context_tokens // CONTEXT_TILE)
    visits = blocks // together * longest
    if limits.context_tiles is not None:
        visits = min(visits, limits.context_tiles // together + longest)
    return visits, 2 * (OWN_BLOCK + limits.segment_tokens) // OWN_TILE


def build_tiles(segments: Segments, capacity: tuple[int, ...] | None = None) -> BlockTiles:
    """Cut rows into tiles.

    Args:
        segments: Host arrays.
        capacity: Most visits, and most own tiles of one block; default: as many as there are.

    Raises:
        ValueError: more are needed than the given capacity.
    """
    most_visits, most_ranks = (None, None) if capacity is None else capacity
    facts = segments.context_id, segments.context_first, segments.context_len
    order, rank, starts, *lists = _visits(*map(np.asarray, facts))
    own_keys = own_tiles(segments, own_block(segments.num_tokens), OWN_TILE)
    kind, context_id, index, used, fullest = (fit(each, most_visits, "visits of context tiles", 0) for each in lists)
    # Tiles of a block are filled one after the other, so those with a key are its first.
    ranks = (own_keys >= 0).any(2).sum(0).reshape(len(starts) - 1, -1).max(1).astype(np.int32)
    own_keys = fit(own_keys, most_ranks, "own tiles of a block", -1)
    return BlockTiles(order, rank, starts, kind, context_id, index, used, fullest, ranks, own_keys)


def _visits(context_id: np.ndarray, context_first: np.ndarray, context_len: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the fields of `BlockTiles` from `order` to `fullest`."""
    tokens = len(context_id)
    blocks, together = tokens // ROW_BLOCK, side_by_side(tokens)
    # Pairs of a block and a context that it sees, and how much it sees of it.
    rows = np.flatnonzero(context_len > context_first)
    contexts = int(context_id.max(initial=0)) + 1
    pair = (rows // ROW_BLOCK).astype(np.int64) * contexts + context_id[rows]
    pairs, inverse = np.unique(pair, return_inverse=True)
    seen, unseen = np.zeros(len(pairs), np.int64), np.full(len(pairs), np.iinfo(np.int64).max)
    np.maximum.at(seen, inverse, context_len[rows])
    np.minimum.at(unseen, inverse, context_first[rows])
    # Their tiles, block after block.
    skipped = unseen // CONTEXT_TILE
    lens = -(-seen // CONTEXT_TILE) - skipped
    index = ramp(lens) + np.repeat(skipped, lens)
    block = np.repeat(pairs // contexts, lens)
    counts = np.bincount(block, minlength=blocks)
    rank = ramp(counts)
    order = np.argsort(-counts, kind="stable")
    ranked = np.empty(blocks, np.int64)
    ranked[order] = np.arange(blocks)
    visits = counts[order[::together]]
    starts = np.cumsum(visits) - visits
    visit, column = starts[ranked[block] // together] + rank, ranked[block] % together
    context = np.repeat(pairs % contexts, lens)
    used = np.minimum(np.repeat(seen, lens) - index * CONTEXT_TILE, CONTEXT_TILE)
    lists = np.zeros((3, int(visits.sum()), together), np.int32)
    lists[:, visit, column] = context, index, used
    tile = context * (int(index.max(initial=0)) + 1) + index
    least, most = np.full(lists.shape[1], np.iinfo(np.int64).max), np.full(lists.shape[1], -1)
    np.minimum.at(least, visit, tile)
    np.maximum.at(most, visit, tile)
    kind = np.searchsorted(WIDTHS, lists[2].max(axis=1, initial=0))
    kind[(least == most) & (kind == SHARED - 1)] = SHARED
    fields = order, ranked, np.append(starts, lists.shape[1]), kind
    return *(field.astype(np.int32) for field in fields), *lists, lists[2].argmax(axis=1).astype(np.int32)


def own_tiles(segments: Segments, block_size: int, tile_size: int) -> np.ndarray:
    """Return the new-token index of each key in each block's own tiles, or -1, `[ranks, own_blocks, tile_size]`.

    Args:
        segments: Host arrays.
        block_size: New tokens that share a list of own keys; divides the tokens.
        tile_size: Keys of a tile, a power of two.
    """
    segment_start, own_first = np.asarray(segments.segment_start), np.asarray(segments.own_first)
    blocks = len(segment_start) // block_size
    rows = np.flatnonzero(segment_start <= np.arange(len(segment_start)))
    # Rows of a segment are consecutive, so a run of equal (block, start) is one crossing of a block.
    block, start = rows // block_size, segment_start[rows].astype(np.int64)
    first = np.flatnonzero(np.r_[True, (block[1:] != block[:-1]) | (start[1:] != start[:-1])]) if len(rows) else rows
    last = np.r_[first[1:], len(rows)] - 1 if len(rows) else rows
    block, start = block[first], start[first]
    visible = rows[last] + 1 - start
    size = np.where(visible <= tile_size, 1 << np.ceil(np.log2(np.maximum(visible, 1))).astype(np.int64), 0)
    size = np.where(visible > tile_size, -(-visible // tile_size) * tile_size, size)
    # Tiles that lie before a window are left out; all others keep their keys where they are.
    skipped = np.where(visible > tile_size, (own_first[rows[first]] - start) // tile_size * tile_size, 0)
    start, visible, size = start + skipped, visible - skipped, size - skipped
    order = np.lexsort((-size, block))  # falling sizes make every offset a multiple of its own size
    block, start, visible, size = block[order], start[order], visible[order], size[order]

    keys_per_block = np.bincount(block, weights=size, minlength=blocks).astype(np.int64)
    crossings = np.bincount(block, minlength=blocks)
    offset = np.cumsum(size) - size - np.repeat(np.cumsum(keys_per_block) - keys_per_block, crossings)
    index = np.repeat(offset, visible) + ramp(visible)
    keys = np.full((-(-keys_per_block.max(initial=0) // tile_size), blocks, tile_size), -1, np.int32)
    key = np.repeat(start, visible) + index - np.repeat(offset, visible)
    keys[index // tile_size, np.repeat(block, visible), index % tile_size] = key
    return keys


def fit(array: np.ndarray, capacity: int | None, name: str, fill: int) -> np.ndarray:
    """Return the array filled up to a capacity; None: as it is, but never empty.

    Raises:
        ValueError: it is longer; names what it holds.
    """
    if capacity is None:
        capacity = max(len(array), 1)
    if len(array) > capacity:
        raise ValueError(f"capacity: the step needs {len(array)} {name}, but only {capacity} fit")
    padded = np.full((capacity, *array.shape[1:]), fill, np.int32)
    padded[: len(array)] = array
    return padded
