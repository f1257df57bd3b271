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

from mis_kernels.backends.laid_out import StepLimits
from mis_kernels.segments import MIN_TOKENS, IntArray, Segments, ramp

ROW_BLOCK = 1024
CONTEXT_TILE = 512
OWN_BLOCK = 128
OWN_TILE = 128
ALIGNMENT = 256
"""Segments of different contexts keep to different runs of so many rows, which visit each other's context."""


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


def tile_capacity(tokens: int, limits: StepLimits) -> tuple[int, int]:
    """Return how many context tiles, and how many own tiles of one block, a step within the limits may need."""
    blocks = tokens // row_block(tokens)
    contexts = limits.contexts
    if not limits.decoding:
        contexts = min(contexts, -(-tokens // blocks // ALIGNMENT) + 1)
    context_tiles = blocks * contexts * -(-limits.context_tokens // CONTEXT_TILE)
    return context_tiles, 2 * (OWN_BLOCK + limits.segment_tokens) // OWN_TILE


def build_tiles(segments: Segments, capacity: tuple[int, ...] | None = None) -> BlockTiles:
    """Cut rows into tiles.

    Args:
        segments: Host arrays.
        capacity: Most context tiles, and most own tiles of one block; default: as many as there are.

    Raises:
        ValueError: more tiles are needed than the given capacity.
    """
    most_tiles, most_ranks = (None, None) if capacity is None else capacity
    starts, *context = _context_tiles(np.asarray(segments.context_id), np.asarray(segments.context_len))
    own_keys = own_tiles(np.asarray(segments.segment_start), own_block(segments.num_tokens), OWN_TILE)
    context_id, index, used = (fit(array, most_tiles, "context tiles", 0) for array in context)
    ranks = np.array(len(own_keys), np.int32)
    return BlockTiles(starts, context_id, index, used, ranks, fit(own_keys, most_ranks, "own tiles of a block", -1))


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
    index = ramp(counts)
    starts = np.searchsorted(np.repeat(pairs // contexts, counts), np.arange(blocks + 1))
    used = np.minimum(np.repeat(seen, counts) - index * CONTEXT_TILE, CONTEXT_TILE)
    context = np.repeat(pairs % contexts, counts)
    return tuple(array.astype(np.int32) for array in (starts, context, index, used))


def own_tiles(segment_start: np.ndarray, block_size: int, tile_size: int) -> np.ndarray:
    """Return the new-token index of each key in each block's own tiles, or -1, `[ranks, own_blocks, tile_size]`.

    Args:
        segment_start: First new token that each token sees, `[tokens]`; beyond the token itself, none.
        block_size: New tokens that share a list of own keys; divides the tokens.
        tile_size: Keys of a tile, a power of two.
    """
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
