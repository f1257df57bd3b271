"""Tile lists: the parts of the two intervals that a blocked backend has to visit.

Context tiles are runs of `CONTEXT_TILE` cached tokens at absolute positions; a block of
`ROW_BLOCK` new tokens visits the tiles any of its rows sees. Own tiles hold the keys of the
segments that cross a block of `OWN_BLOCK` new tokens.

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
from jaxtyping import Array, Int32

IntArray = np.ndarray | Array

ROW_BLOCK = 1024
CONTEXT_TILE = 512
OWN_BLOCK = 128
OWN_TILE = 128
MIN_TOKENS = 64
"""Steps are padded to multiples of this. With fewer rows a product on XLA:CPU takes another path."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockTiles:
    """Tile lists in the order they are visited; entries past the last start are padding.

    Attributes:
        starts: Context tiles of block `b` are `starts[b]` to `starts[b + 1]`, `[blocks + 1]`.
        context_id: Context of each tile, `[tiles]`.
        index: Which run of `CONTEXT_TILE` tokens of that context, `[tiles]`.
        used: Tokens of the tile that some row of the block sees, 1 to `CONTEXT_TILE`, `[tiles]`.
        own_ranks: Own tiles of the block that has most, a scalar.
        own_keys: New-token index of each key in a block's n-th own tile, or -1,
            `[ranks, own_blocks, OWN_TILE]`.
    """

    starts: IntArray
    context_id: IntArray
    index: IntArray
    used: IntArray
    own_ranks: IntArray
    own_keys: IntArray


def row_block(tokens: int) -> int:
    """Return how many new tokens of a step of `tokens` share a list of context tiles.

    The largest part of the step up to `ROW_BLOCK`: large products suffer least from what XLA:CPU spends
    between two operations.
    """
    runs = tokens // MIN_TOKENS
    return MIN_TOKENS * max(run for run in range(1, ROW_BLOCK // MIN_TOKENS + 1) if runs % run == 0)


def own_block(tokens: int) -> int:
    """Return how many new tokens of a step of `tokens` share a list of own keys."""
    return math.gcd(OWN_BLOCK, row_block(tokens))


def build_tiles(
    *,
    context_id: Int32[np.ndarray, " tokens"],
    context_len: Int32[np.ndarray, " tokens"],
    segment_of: Int32[np.ndarray, " tokens"],
    starts: Int32[np.ndarray, " segments"],
    tile_capacity: int | None,
    own_rank_capacity: int | None,
) -> BlockTiles:
    """Cut rows into tiles. `segment_of` is -1 for rows that see no new token.

    Raises:
        ValueError: more tiles are needed than the given capacity.
    """
    tile_starts, tile_context, tile_index, tile_used = _context_tiles(context_id, context_len)
    own_keys = _own_tiles(segment_of, starts)
    return BlockTiles(
        starts=tile_starts,
        context_id=_fit(tile_context, tile_capacity, "tile_capacity", 0),
        index=_fit(tile_index, tile_capacity, "tile_capacity", 0),
        used=_fit(tile_used, tile_capacity, "tile_capacity", 0),
        own_ranks=np.array(len(own_keys), np.int32),
        own_keys=_fit(own_keys, own_rank_capacity, "own_rank_capacity", -1),
    )


def _context_tiles(context_id: np.ndarray, context_len: np.ndarray) -> tuple[np.ndarray, ...]:
    block_size = row_block(len(context_id))
    blocks = len(context_id) // block_size
    rows = np.flatnonzero(context_len)
    contexts = int(context_id.max(initial=0)) + 1
    pair = (rows // block_size).astype(np.int64) * contexts + context_id[rows]
    pairs, inverse = np.unique(pair, return_inverse=True)
    seen = np.zeros(len(pairs), np.int64)
    np.maximum.at(seen, inverse, context_len[rows])
    counts = -(-seen // CONTEXT_TILE)
    index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.searchsorted(np.repeat(pairs // contexts, counts), np.arange(blocks + 1))
    used = np.minimum(np.repeat(seen, counts) - index * CONTEXT_TILE, CONTEXT_TILE)
    context = np.repeat(pairs % contexts, counts)
    return tuple(array.astype(np.int32) for array in (starts, context, index, used))


def _own_tiles(segment_of: np.ndarray, starts: np.ndarray) -> np.ndarray:
    block_size = own_block(len(segment_of))
    blocks = len(segment_of) // block_size
    rows = np.flatnonzero(segment_of >= 0)
    # Rows of a segment are consecutive, so a run of equal (block, segment) is one crossing of a block.
    block, segment = rows // block_size, segment_of[rows]
    first = (
        np.flatnonzero(np.r_[True, (block[1:] != block[:-1]) | (segment[1:] != segment[:-1])]) if len(rows) else rows
    )
    last = np.r_[first[1:], len(rows)] - 1 if len(rows) else rows
    block, start = block[first], starts[segment[first]].astype(np.int64)
    visible = rows[last] + 1 - start
    size = np.where(visible <= OWN_TILE, 1 << np.ceil(np.log2(np.maximum(visible, 1))).astype(np.int64), 0)
    size = np.where(visible > OWN_TILE, -(-visible // OWN_TILE) * OWN_TILE, size)
    order = np.lexsort((-size, block))  # falling sizes make every offset a multiple of its own size
    block, start, visible, size = block[order], start[order], visible[order], size[order]

    keys_per_block = np.bincount(block, weights=size, minlength=blocks).astype(np.int64)
    crossings = np.bincount(block, minlength=blocks)
    offset = np.cumsum(size) - size - np.repeat(np.cumsum(keys_per_block) - keys_per_block, crossings)
    place = np.repeat(offset, visible) + np.arange(visible.sum()) - np.repeat(np.cumsum(visible) - visible, visible)
    keys = np.full((-(-keys_per_block.max(initial=0) // OWN_TILE), blocks, OWN_TILE), -1, np.int32)
    key = np.repeat(start, visible) + place - np.repeat(offset, visible)
    keys[place // OWN_TILE, np.repeat(block, visible), place % OWN_TILE] = key
    return keys


def _fit(array: np.ndarray, capacity: int | None, name: str, fill: int) -> np.ndarray:
    if capacity is None:
        capacity = max(len(array), 1)
    if len(array) > capacity:
        raise ValueError(f"{name}: the step needs {len(array)} tiles, but only {capacity} fit")
    padded = np.full((capacity, *array.shape[1:]), fill, np.int32)
    padded[: len(array)] = array
    return padded
