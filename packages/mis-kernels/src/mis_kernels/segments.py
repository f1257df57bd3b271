"""Segments: which new tokens a step computes, and what each of them sees.

A step computes a packed array of new tokens. Each token sees two intervals and nothing else:

* the first `context_len` tokens of its context, read from the paged KV cache, and
* the new tokens from `segment_start` to itself.

A segment whose K/V are written to pages (`paged`: a query, a long item) is read back from there: the
step writes pages before it attends, so such a token's context includes itself and its second
interval is empty. Then a token's bits depend on absolute positions alone, never on how a query was
cut into chunks. A segment that lives for one step only (an item) keeps its K/V among the new tokens.

`lay_out` turns segment lengths and contexts into these arrays on the host, without a Python loop
over segments. There is no mask array anywhere.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Int32

from mis_kernels.backends.tpu.tiles import TpuBlocks, TpuTiles, build_tpu_tiles
from mis_kernels.backends.xla.tiles import BlockTiles, build_tiles

IntArray = np.ndarray | Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """What the new tokens of a step see; host arrays from `lay_out`, device arrays inside `jit`.

    Attributes:
        context_id: Row of `page_table` that holds the token's context, `[tokens]`.
        context_len: Tokens of that context the token sees, itself included if paged, `[tokens]`.
        segment_start: First new token it sees, `[tokens]`; beyond the token itself, none.
        page_table: Pages of each context in order, `[contexts, pages_per_context]`.
        page_writes: Page that each run of `page_size` new tokens is written to,
            `[tokens / page_size]`; a number past the last page means nowhere.
        tiles: The same facts cut into the tiles a backend visits, or None for one that cuts them itself.
    """

    context_id: IntArray
    context_len: IntArray
    segment_start: IntArray
    page_table: IntArray
    page_writes: IntArray
    tiles: BlockTiles | TpuTiles | None

    @property
    def num_tokens(self) -> int:
        """New tokens of the step, padding included."""
        return self.context_id.shape[0]

    def shift_pages(self, offset: Array | int) -> "Segments":
        """Return the same segments in a region of the cache that begins `offset` pages later.

        The layers of a model share one cache: layer `i` lives `i * pages_per_layer` pages on.
        """
        return dataclasses.replace(self, page_table=self.page_table + offset, page_writes=self.page_writes + offset)


NOWHERE = 2**30
"""Page number of tokens that are written to no page; no cache has so many."""


def lay_out(
    *,
    starts: Int32[np.ndarray, " segments"],
    lens: Int32[np.ndarray, " segments"],
    context_ids: Int32[np.ndarray, " segments"],
    context_lens: Int32[np.ndarray, " segments"],
    paged: Bool[np.ndarray, " segments"],
    page_table: Int32[np.ndarray, "contexts pages_per_context"],
    page_size: int,
    tokens: int,
    tile_capacity: int | None = None,
    own_rank_capacity: int | None = None,
    blocks: TpuBlocks | None = None,
    tiled: bool = True,
) -> Segments:
    """Describe a step by small integer arrays.

    Args:
        starts: First new token of each segment in the packed array, rising, not overlapping. A paged
            segment starts at a multiple of `page_size`.
        lens: New tokens of each segment, at least 1.
        context_ids: Row of `page_table` with the segment's context.
        context_lens: Cached tokens before the segment's first new token; for a paged segment a
            multiple of `page_size`.
        paged: Whether the segment's K/V are written to its context's pages.
        page_table: Page numbers of each context, in order of position.
        page_size: Tokens in a page.
        tokens: Length of the packed array; tokens outside segments are padding and see nothing.
        tile_capacity: Length of the context tile list, for a fixed compiled shape; default: as needed.
        own_rank_capacity: Length of the own-key tile list, likewise; the TPU kernel has one list for both.
        blocks: Block sizes of the TPU kernel (see `block_sizes`); default: tiles for `xla`.
        tiled: Whether to make tile lists at all; `native` needs none.

    Raises:
        ValueError: segments overlap, leave the array, are misaligned, or need more tiles than fit.
    """
    _check(starts, lens, context_lens, context_ids, paged, page_table, page_size, tokens)
    token = np.arange(tokens, dtype=np.int32)
    segment_of = np.full(tokens, -1, np.int32)
    index_in_segment = _ramp(lens)
    used = np.repeat(starts, lens) + index_in_segment
    segment_of[used] = np.repeat(np.arange(len(lens), dtype=np.int32), lens)

    context_id = np.zeros(tokens, np.int32)
    context_len = np.zeros(tokens, np.int32)
    segment_start = token + 1
    context_id[used] = np.repeat(context_ids, lens)
    context_len[used] = np.repeat(context_lens, lens) + np.where(np.repeat(paged, lens), index_in_segment + 1, 0)
    segment_start[used] = np.where(np.repeat(paged, lens), used + 1, np.repeat(starts, lens))

    page_writes = np.full(max(tokens // page_size, 1), NOWHERE, np.int32)
    page_counts = -(-lens[paged] // page_size)
    ramp = _ramp(page_counts)
    page_writes[np.repeat(starts[paged] // page_size, page_counts) + ramp] = page_table[
        np.repeat(context_ids[paged], page_counts), np.repeat(context_lens[paged] // page_size, page_counts) + ramp
    ]
    if not tiled:
        return Segments(context_id, context_len, segment_start, page_table, page_writes, None)
    rows = {"context_id": context_id, "context_len": context_len}
    if blocks is not None:
        pages = {"page_table": page_table, "page_size": page_size}
        tiles = build_tpu_tiles(
            **rows, **pages, segment_start=segment_start, blocks=blocks, tile_capacity=tile_capacity
        )
        return Segments(context_id, context_len, segment_start, page_table, page_writes, tiles)
    tiles = build_tiles(
        **rows,
        segment_of=np.where(segment_start <= token, segment_of, -1),
        starts=starts,
        tile_capacity=tile_capacity,
        own_rank_capacity=own_rank_capacity,
    )
    return Segments(context_id, context_len, segment_start, page_table, page_writes, tiles)


def _ramp(lens: np.ndarray) -> np.ndarray:
    """`0 .. n - 1` for every n of `lens`, concatenated."""
    ends = np.cumsum(lens)
    return (np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lens, lens)).astype(np.int32)


def _check(
    starts: Any, lens: Any, context_lens: Any, context_ids: Any, paged: Any, table: Any, page: int, n: int
) -> None:
    if len(lens) == 0:
        return
    if lens.min() < 1:
        raise ValueError("lens: every segment needs at least one token")
    ends = starts + lens
    if starts[0] < 0 or ends[-1] > n or np.any(starts[1:] < ends[:-1]):
        raise ValueError(f"starts, lens: segments overlap or leave the packed array of {n} tokens")
    if np.any(starts[paged] % page) or np.any(context_lens[paged] % page):
        raise ValueError(f"starts, context_lens: a paged segment starts at a multiple of the page size, {page}")
    if context_ids.min() < 0 or context_ids.max() >= len(table):
        raise ValueError(f"context_ids: outside the page table of {len(table)} contexts")
    reach = context_lens + np.where(paged, lens, 0)
    if context_lens.min() < 0 or reach.max() > table.shape[1] * page:
        raise ValueError(f"context_lens: a context of {reach.max()} tokens needs more than {table.shape[1]} pages")
