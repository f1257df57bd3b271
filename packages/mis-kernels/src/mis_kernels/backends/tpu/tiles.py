"""Tile lists and block sizes of the TPU kernel.

The kernel takes a block of new tokens and visits tiles of keys: runs of a context's cached tokens,
then runs of the new tokens themselves. The list is cut on the host, in the order of the blocks; a
block's tiles come in runs by how much masking they need:

* *full*: every live row of the block sees every key;
* *limited*: every live row sees the same first `used` keys (the end of a context);
* *masked*: rows differ (a query's own diagonal, several contexts in one block, new tokens far apart);
* *near*: the block's own new tokens, where rows see none from further back than `REACH` tokens before the `REACH`
  that they are one of. Short items do, and of 512 x 512 keys of such a block they see a band.

Rows of padding do not count: the kernel writes zeros there in the end.
"""

import dataclasses
import json
from functools import cache
from importlib import resources

import jax
import numpy as np
from jaxtyping import Int64

from mis_kernels.segments import IntArray, Segments, ramp

OWN_ALIGNMENT = 16
"""Own tiles start at a multiple of this: the rows of a bfloat16 tile in memory."""
CHIPS = ("v5e", "v6e", "v7x")
KINDS = 4
REACH = 128
"""Tokens that see new tokens together in a near tile, as many as a vector register has lanes; and new tokens before
them that they may see."""


@dataclasses.dataclass(frozen=True)
class TpuBlocks:
    """Block sizes of the kernel.

    Attributes:
        tokens: New tokens in a block; its rows are these times the query heads per KV head.
        keys: Keys in a tile.
        strip: Rows whose logits are worked on together; the products of one strip overlap the
            exponentials of another.
        key_step: Keys in one product.
    """

    tokens: int
    keys: int
    strip: int
    key_step: int

    @property
    def has_near(self) -> bool:
        """Whether a tile holds all of a block's new tokens, cut into parts of near tiles."""
        return self.tokens % REACH == 0 and self.tokens <= self.keys


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TpuTiles:
    """The tile list; entries past the last bound are padding.

    Attributes:
        bounds: Block `b` has full tiles `bounds[4 b]` to `bounds[4 b + 1]`, then limited tiles up to
            `bounds[4 b + 2]`, masked tiles up to `bounds[4 b + 3]`, near tiles up to `bounds[4 b + 4]`,
            `[4 * blocks + 1]`.
        context_id: Context of each tile; -1: keys are new tokens, `[tiles]`.
        first: Position of the first key in its context, or among the new tokens, `[tiles]`.
        used: Keys that some row sees, `[tiles]`.
        contiguous: 1 where the tile's pages are all used and consecutive, so that one copy fetches
            them, `[tiles]`.
        blocks: Block sizes the list was cut for (static).
    """

    bounds: IntArray
    context_id: IntArray
    first: IntArray
    used: IntArray
    contiguous: IntArray
    blocks: TpuBlocks = dataclasses.field(metadata={"static": True})


def build_tpu_tiles(
    segments: Segments, page_size: int, blocks: TpuBlocks, tile_capacity: int | None = None
) -> TpuTiles:
    """Cut rows into tiles.

    Args:
        segments: Host arrays.
        page_size: Tokens in a page.
        blocks: Block sizes.
        tile_capacity: Length of the list; default: as needed.

    Raises:
        ValueError: the page size does not divide a tile, or more tiles are needed than fit.
    """
    if blocks.keys % page_size:
        raise ValueError(f"page_size: {page_size} does not divide the kernel's tiles of {blocks.keys} keys")
    facts = segments.context_id, segments.context_len, segments.segment_start, segments.page_table
    context_id, context_len, segment_start, page_table = (np.asarray(each) for each in facts)
    count = -(-len(context_id) // blocks.tokens)
    context = _context_tiles(context_id, context_len, segment_start, blocks)
    own = _own_tiles(segment_start, blocks)
    block, kind, tile_context, first, used = (np.concatenate(parts) for parts in zip(context, own, strict=True))
    order = np.lexsort((np.arange(len(block)), kind, block))
    run = (block * KINDS + kind)[order]
    bounds = np.searchsorted(run, np.arange(count * KINDS + 1))
    tile_context, first, used = tile_context[order], first[order], used[order]
    contiguous = _contiguous(tile_context, first, used, page_table, page_size, blocks.keys)
    capacity = max(len(run), 1) if tile_capacity is None else tile_capacity
    if len(run) > capacity:
        raise ValueError(f"tile_capacity: the step needs {len(run)} tiles, but only {capacity} fit")
    padded = (np.pad(x, (0, capacity - len(run))).astype(np.int32) for x in (tile_context, first, used, contiguous))
    return TpuTiles(bounds.astype(np.int32), *padded, blocks=blocks)


def tile_capacity(tokens: int, context_tokens: int, blocks: TpuBlocks, contexts: int = 1) -> int:
    """Return a length of the tile list that fits any step whose blocks each have so many contexts, and short segments.

    Args:
        tokens: Length of the packed array.
        context_tokens: Longest context, the step's own paged tokens included.
        blocks: Block sizes.
        contexts: Contexts of a block.
    """
    per_block = contexts * -(-context_tokens // blocks.keys) + 1 + -(-blocks.tokens // blocks.keys)
    return -(-tokens // blocks.tokens) * per_block


def count_tiles(tiles: TpuTiles) -> Int64[np.ndarray, "*stack kinds"]:
    """Count the full, limited, masked and near tiles of a step, or of each of a stack of steps."""
    bounds = np.asarray(tiles.bounds)
    return np.diff(bounds).reshape(*bounds.shape[:-1], -1, KINDS).sum(-2)


def _context_tiles(
    context_id: np.ndarray, context_len: np.ndarray, segment_start: np.ndarray, blocks: TpuBlocks
) -> tuple[np.ndarray, ...]:
    """Return block, kind, context, first key and used keys of the context tiles."""
    live = np.flatnonzero((context_len > 0) | (segment_start <= np.arange(len(context_len))))
    contexts = int(context_id.max(initial=0)) + 1
    pair = (live // blocks.tokens).astype(np.int64) * contexts + context_id[live]
    pairs, inverse = np.unique(pair, return_inverse=True)
    longest, shortest = np.zeros(len(pairs), np.int64), np.full(len(pairs), np.iinfo(np.int64).max)
    np.maximum.at(longest, inverse, context_len[live])
    np.minimum.at(shortest, inverse, context_len[live])
    block = pairs // contexts
    alone = np.bincount(block, minlength=1)[block] == 1  # the block's only context

    counts = -(-longest // blocks.keys)
    first = ramp(counts) * blocks.keys
    block, context, longest, shortest, alone = (
        np.repeat(x, counts) for x in (block, pairs % contexts, longest, shortest, alone)
    )
    used = np.minimum(longest - first, blocks.keys)
    uniform = alone & (shortest >= first + used)
    kind = np.where(uniform, np.where(used == blocks.keys, 0, 1), 2)
    return block, kind, context, first, used


def _own_tiles(segment_start: np.ndarray, blocks: TpuBlocks) -> tuple[np.ndarray, ...]:
    """Return block, kind, context, first key and used keys of the tiles of new tokens."""
    rows = np.flatnonzero(segment_start <= np.arange(len(segment_start)))
    if not len(rows):
        return (rows,) * 5
    block, where = np.unique(rows // blocks.tokens, return_index=True)
    lowest = np.minimum.reduceat(segment_start[rows], where)
    end = rows[np.r_[where[1:], len(rows)] - 1] + 1
    near = _are_near(segment_start, rows, where, blocks)
    lowest = np.where(near, block * blocks.tokens, lowest // OWN_ALIGNMENT * OWN_ALIGNMENT)
    counts = -(-(end - lowest) // blocks.keys)
    first = np.repeat(lowest, counts) + ramp(counts) * blocks.keys
    used = np.minimum(np.repeat(end, counts) - first, blocks.keys)
    kind = np.repeat(np.where(near, 3, 2), counts)
    return np.repeat(block, counts), kind, np.full(len(first), -1), first, used


def _are_near(segment_start: np.ndarray, rows: np.ndarray, where: np.ndarray, blocks: TpuBlocks) -> np.ndarray:
    """Return for each block with live rows, which begin at `where`, whether a near tile holds what they see."""
    if not blocks.has_near:
        return np.zeros(len(where), bool)
    furthest = np.maximum(rows // REACH * REACH - REACH, rows // blocks.tokens * blocks.tokens)
    return np.logical_and.reduceat(segment_start[rows] >= furthest, where)


def _contiguous(
    context: np.ndarray, first: np.ndarray, used: np.ndarray, table: np.ndarray, page_size: int, keys: int
) -> np.ndarray:
    run = np.arange(keys // page_size)
    page = np.minimum(first[:, None] // page_size + run, table.shape[1] - 1)
    pages = table[np.maximum(context, 0)[:, None], page]
    whole = -(-used // page_size) == len(run)
    return (context >= 0) & whole & np.all(pages - pages[:, :1] == run, axis=1)


@cache
def _tuned(chip: str) -> list[dict]:
    return json.loads((resources.files("mis_kernels.backends.tpu") / "tuned" / f"attention_{chip}.json").read_text())[
        "entries"
    ]


def block_sizes(*, chip: str, heads: int, kv_heads: int, head_dim: int, dtype: str = "bfloat16") -> TpuBlocks:
    """Look up the block sizes for a head shape, as one device sees it.

    The first entry of the chip's table that matches is taken; the table names what else was tried.

    Raises:
        ValueError: the chip is unknown.
    """
    if chip not in CHIPS:
        raise ValueError(f"chip: {chip!r} is unknown; choose from {', '.join(CHIPS)}")
    group = heads // kv_heads
    for entry in _tuned(chip):
        if group <= entry["max_group"] and head_dim <= entry["max_head_dim"] and dtype in entry["dtypes"]:
            return TpuBlocks(**{field.name: entry[field.name] for field in dataclasses.fields(TpuBlocks)})
    raise ValueError(
        f"heads, kv_heads, head_dim, dtype: no block sizes for {heads}, {kv_heads}, {head_dim}, {dtype} on {chip}"
    )


def vmem_bytes(blocks: TpuBlocks, *, group: int, head_dim: int, itemsize: int) -> int:
    """Estimate the kernel's VMEM: buffers, accumulators, and one strip's logits twice."""
    lanes = -(-head_dim // 128) * 128
    rows = blocks.tokens * group
    tiles = 2 * 4 * blocks.keys * lanes * itemsize
    queries = ((2 * 2 + 1) * rows + 2 * blocks.tokens) * lanes * itemsize
    state = rows * (head_dim + 2 * 8) * 4
    logits = 2 * min(blocks.strip, rows) * blocks.keys * (4 + itemsize)
    return tiles + queries + state + logits
