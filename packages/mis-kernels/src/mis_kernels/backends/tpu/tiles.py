"""Tile lists and block sizes of the TPU kernel.

The kernel takes a block of new tokens and visits tiles of keys: runs of a context's cached tokens,
then runs of the new tokens themselves. The list is cut on the host, in the order of the blocks; a
block's tiles come in runs by how much masking they need:

* *full*: every live row of the block sees every key;
* *limited*: every live row sees the same first `used` keys (the end of a context);
* *masked*: rows differ (a query's own diagonal, several contexts in one block, new tokens far apart);
* *near*: the block's own new tokens, where rows see none from further back than `REACH` tokens before the `REACH`
  that they are one of. Short items do, and of 512 x 512 keys of such a block they see a band.

In mixed steps, where rows of many contexts lie side by side, a tile of cached tokens has parts, each a run of any
context: two short contexts are one tile. A part begins at a multiple of its own size in its context, and products of
keys are as long, so what a row adds up, and in which order, is what it adds up in other steps.

Rows of padding do not count: the kernel writes zeros there in the end.
"""

import dataclasses
import json
from functools import cache
from importlib import resources
from typing import Self

import jax
import numpy as np
from jaxtyping import Int64

from mis_kernels.backends.laid_out import StepLimits
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
        parts: Runs of cached tokens in a tile, each of any context.
        reach: New tokens before a block that its near tiles hold, too: 0 or `REACH`.
    """

    tokens: int
    keys: int
    strip: int
    key_step: int
    parts: int = 1
    reach: int = 0

    @property
    def has_near(self) -> bool:
        """Whether a tile holds all of a block's new tokens, cut into pieces of near tiles."""
        return self.tokens % REACH == 0 and self.tokens + self.reach <= self.keys

    @property
    def part_keys(self) -> int:
        """Keys in a part of a tile."""
        return self.keys // self.parts

    def for_mixed_steps(self, group: int) -> Self:
        """Return the sizes for steps whose blocks have many contexts: fewer rows, and a part for each product.

        Of a group of 2, 128 rows would take two thirds of the cycles that 256 take (v6e).
        """
        tokens = min(self.tokens, 2 * REACH if group <= 2 else REACH)
        strip, parts = min(self.strip, tokens * group), self.keys // self.key_step
        reach = REACH if tokens + REACH <= self.keys else 0
        return dataclasses.replace(self, tokens=tokens, strip=strip, parts=parts, reach=reach)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TpuTiles:
    """The tile list; entries past the last bound are padding.

    Attributes:
        bounds: Block `b` has full tiles `bounds[4 b]` to `bounds[4 b + 1]`, then limited tiles up to
            `bounds[4 b + 2]`, masked tiles up to `bounds[4 b + 3]`, near tiles up to `bounds[4 b + 4]`,
            `[4 * blocks + 1]`.
        context_id: Context of each part of each tile; -1: keys are new tokens, `[tiles * parts]`.
        first: Position of a part's first key in its context, `[tiles * parts]`; the tile's first among the new
            tokens stands at its first part.
        used: Keys of a part up to the last that some row sees, `[tiles * parts]`; a tile's new tokens stand at its
            first part.
        contiguous: 1 where the part's pages are all used and consecutive, so that one copy fetches
            them, `[tiles * parts]`.
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
    page_table = np.asarray(segments.page_table)
    count = -(-segments.num_tokens // blocks.tokens)
    context, own = _context_tiles(segments, blocks), _own_tiles(np.asarray(segments.own_first), blocks)
    block, kind, tile_context, first, used = (np.concatenate(columns) for columns in zip(context, own, strict=True))
    order = np.lexsort((np.arange(len(block)), kind, block))
    run = (block * KINDS + kind)[order]
    bounds = np.searchsorted(run, np.arange(count * KINDS + 1))
    tile_context, first, used = (column[order].reshape(-1) for column in (tile_context, first, used))
    contiguous = _contiguous(tile_context, first, used, page_table, page_size, blocks.part_keys)
    capacity = max(len(run), 1) if tile_capacity is None else tile_capacity
    if len(run) > capacity:
        raise ValueError(f"tile_capacity: the step needs {len(run)} tiles, but only {capacity} fit")
    missing = (capacity - len(run)) * blocks.parts
    padded = (np.pad(x, (0, missing)).astype(np.int32) for x in (tile_context, first, used, contiguous))
    return TpuTiles(bounds.astype(np.int32), *padded, blocks=blocks)


def tile_capacity(tokens: int, limits: StepLimits, blocks: TpuBlocks) -> int:
    """Return a length of the tile list that fits any step of `tokens` new tokens within the limits.

    A block has one context, or as many as rows in decode steps, or what `StepLimits.context_tiles` leaves it.
    """
    count = -(-tokens // blocks.tokens)
    if limits.context_tiles is not None:
        shared = (limits.context_tiles + count * (blocks.parts - 1)) // blocks.parts
    else:
        contexts = min(limits.contexts, blocks.tokens) if limits.decoding or blocks.parts > 1 else 1
        shared = count * -(-contexts * -(-limits.context_tokens // blocks.part_keys) // blocks.parts)
    before = OWN_ALIGNMENT - 1 + limits.segment_tokens - 1
    return shared + count * -(-(blocks.tokens + before) // blocks.keys)


def count_tiles(tiles: TpuTiles) -> Int64[np.ndarray, "*stack kinds"]:
    """Count the full, limited, masked and near tiles of a step, or of each of a stack of steps."""
    bounds = np.asarray(tiles.bounds)
    return np.diff(bounds).reshape(*bounds.shape[:-1], -1, KINDS).sum(-2)


def count_single_pages(tiles: TpuTiles, page_size: int) -> Int64[np.ndarray, "*stack"]:
    """Count the pages that are copied one by one in a step, or in each of a stack: those of parts that are not whole.

    Parts whose pages lie apart are left out: how many do depends on the cache.
    """
    context_id, used = np.asarray(tiles.context_id), np.asarray(tiles.used)
    pages = -(-used // page_size)
    return np.where((context_id >= 0) & (pages < tiles.blocks.part_keys // page_size), pages, 0).sum(-1)


def _context_tiles(segments: Segments, blocks: TpuBlocks) -> tuple[np.ndarray, ...]:
    """Return block and kind of the context tiles, `[tiles]`; context, first key and used keys, `[tiles, parts]`."""
    facts = segments.context_id, segments.context_first, segments.context_len, segments.segment_start
    context_id, context_first, context_len, segment_start = map(np.asarray, facts)
    live = np.flatnonzero((context_len > 0) | (segment_start <= np.arange(len(context_len))))
    contexts = int(context_id.max(initial=0)) + 1
    pair = (live // blocks.tokens).astype(np.int64) * contexts + context_id[live]
    pairs, inverse = np.unique(pair, return_inverse=True)
    longest, latest = np.zeros(len(pairs), np.int64), np.zeros(len(pairs), np.int64)
    shortest, earliest = np.full((2, len(pairs)), np.iinfo(np.int64).max)
    np.maximum.at(longest, inverse, context_len[live])
    np.minimum.at(shortest, inverse, context_len[live])
    np.maximum.at(latest, inverse, context_first[live])
    np.minimum.at(earliest, inverse, context_first[live])
    block = pairs // contexts
    alone = np.bincount(block, minlength=1)[block] == 1  # the block's only context

    skipped = earliest // blocks.part_keys
    counts = np.maximum(-(-longest // blocks.part_keys) - skipped, 0)
    first = (ramp(counts) + np.repeat(skipped, counts)) * blocks.part_keys
    block, context, longest, shortest, latest, alone = (
        np.repeat(x, counts) for x in (block, pairs % contexts, longest, shortest, latest, alone)
    )
    used = np.minimum(longest - first, blocks.part_keys)
    masked = ~(alone & (first >= latest) & (shortest >= first + used))

    rank = ramp(np.unique(block, return_counts=True)[1])  # of a part in its block
    tile = np.cumsum(rank % blocks.parts == 0) - 1
    begins = np.flatnonzero(rank % blocks.parts == 0)
    columns = np.zeros((3, len(begins), blocks.parts), np.int64)
    columns[:, tile, rank % blocks.parts] = context, first, used
    whole = columns[2].sum(1) == blocks.keys
    kind = np.where(np.bincount(tile, masked, len(begins)) > 0, 2, np.where(whole, 0, 1))
    return block[begins], kind, *columns


def _own_tiles(own_first: np.ndarray, blocks: TpuBlocks) -> tuple[np.ndarray, ...]:
    """Return block and kind of the tiles of new tokens, `[tiles]`; -1, first key and used keys, `[tiles, parts]`."""
    rows = np.flatnonzero(own_first <= np.arange(len(own_first)))
    block, where = np.unique(rows // blocks.tokens, return_index=True)
    lowest = np.minimum.reduceat(own_first[rows], where) if len(rows) else rows
    end = rows[np.r_[where[1:], len(rows)] - 1] + 1 if len(rows) else rows
    near = _are_near(own_first, rows, where, blocks)
    lowest = np.where(near, block * blocks.tokens - blocks.reach, lowest // OWN_ALIGNMENT * OWN_ALIGNMENT)
    counts = -(-(end - lowest) // blocks.keys)
    columns = np.zeros((3, counts.sum(), blocks.parts), np.int64)
    columns[0] = -1
    columns[1, :, 0] = np.repeat(lowest, counts) + ramp(counts) * blocks.keys
    columns[2, :, 0] = np.minimum(np.repeat(end, counts) - columns[1, :, 0], blocks.keys)
    kind = np.repeat(np.where(near, 3, 2), counts)
    return np.repeat(block, counts), kind, *columns


def _are_near(own_first: np.ndarray, rows: np.ndarray, where: np.ndarray, blocks: TpuBlocks) -> np.ndarray:
    """Return for each block with live rows, which begin at `where`, whether a near tile holds what they see."""
    if not blocks.has_near or not len(rows):
        return np.zeros(len(where), bool)
    begin = rows // blocks.tokens * blocks.tokens - blocks.reach
    furthest = np.maximum(rows // REACH * REACH - REACH, begin)
    return np.logical_and.reduceat((own_first[rows] >= furthest) & (begin >= 0), where)


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
            names = (field.name for field in dataclasses.fields(TpuBlocks))
            return TpuBlocks(**{name: entry[name] for name in names if name in entry})
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
