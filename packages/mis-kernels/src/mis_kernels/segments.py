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
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
from jaxtyping import Array, Bool, Int32

from mis_kernels.ragged import ramp

if TYPE_CHECKING:
    from mis_kernels.backends import Backend, LaidOut

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
        page_writes: Page that each run of `page_size` new tokens is written to, `[tokens / page_size]`; or that each
            token is written to, at its own position's slot, `[tokens]`. A number past the last page means nowhere.
    """

    context_id: IntArray
    context_len: IntArray
    segment_start: IntArray
    page_table: IntArray
    page_writes: IntArray

    @property
    def num_tokens(self) -> int:
        """New tokens of the step, padding included."""
        return self.context_id.shape[0]

    def shift_pages(self, offset: Array | int) -> Self:
        """Return the same segments in a region of the cache that begins `offset` pages later.

        The layers of a model share one cache: layer `i` lives `i * pages_per_layer` pages on.
        """
        return dataclasses.replace(self, page_table=self.page_table + offset, page_writes=self.page_writes + offset)


MIN_TOKENS = 64
"""Steps are padded to multiples of this, but for sizes that the backend has, `Backend.few_rows`.

With fewer rows a product on XLA:CPU takes another path.
"""

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
    backend: "Backend",
    tile_capacity: tuple[int, ...] | None = None,
    page_writes: Int32[np.ndarray, " runs"] | None = None,
) -> "LaidOut":
    """Describe a step by small integer arrays, and have a backend add what it needs to visit them.

    Args:
        starts: First new token of each segment in the packed array, rising, not overlapping. A paged
            segment whose pages are written whole starts at a multiple of `page_size`.
        lens: New tokens of each segment, at least 1.
        context_ids: Row of `page_table` with the segment's context.
        context_lens: Cached tokens before the segment's first new token; for a segment whose pages are written
            whole a multiple of `page_size`.
        paged: Whether the segment's K/V are written to its context's pages.
        page_table: Page numbers of each context, in order of position.
        page_size: Tokens in a page.
        tokens: Length of the packed array; tokens outside segments are padding and see nothing.
        backend: Who attends, see `mis_kernels.backends.choose`.
        tile_capacity: Lengths of its tile lists, for a fixed compiled shape; default: as needed.
        page_writes: Page that each run of `page_size` new tokens goes to, or each token, or `NOWHERE`; default: runs
            of paged segments go to their contexts' pages.

    Raises:
        ValueError: segments overlap, leave the array, are misaligned, reach beyond the page table, or need more
            tiles than fit.
    """
    run = page_size if page_writes is None else tokens // len(page_writes)
    _check(starts, lens, context_lens, context_ids, paged, page_table, page_size, run, tokens)
    index_in_segment = ramp(lens)
    used = np.repeat(starts, lens) + index_in_segment
    is_paged = np.repeat(paged, lens)

    context_id, context_len = np.zeros(tokens, np.int32), np.zeros(tokens, np.int32)
    segment_start = np.arange(1, tokens + 1, dtype=np.int32)
    context_id[used] = np.repeat(context_ids, lens)
    context_len[used] = np.repeat(context_lens, lens) + np.where(is_paged, index_in_segment + 1, 0)
    segment_start[used] = np.where(is_paged, used + 1, np.repeat(starts, lens))

    if page_writes is None:
        page_writes = np.full(max(tokens // page_size, 1), NOWHERE, np.int32)
        page_counts = -(-lens[paged] // page_size)
        page = ramp(page_counts)
        page_writes[np.repeat(starts[paged] // page_size, page_counts) + page] = page_table[
            np.repeat(context_ids[paged], page_counts), np.repeat(context_lens[paged] // page_size, page_counts) + page
        ]
    segments = Segments(context_id, context_len, segment_start, page_table, page_writes)
    return backend.lay_out(segments, page_size, tile_capacity)


def _check(
    starts: Any, lens: Any, context_lens: Any, context_ids: Any, paged: Any, table: Any, page: int, run: int, n: int
) -> None:
    if len(lens) == 0:
        return
    if lens.min() < 1:
        raise ValueError("lens: every segment needs at least one token")
    ends = starts + lens
    if starts[0] < 0 or ends[-1] > n or np.any(starts[1:] < ends[:-1]):
        raise ValueError(f"starts, lens: segments overlap or leave the packed array of {n} tokens")
    if np.any(starts[paged] % run) or np.any(context_lens[paged] % run):
        raise ValueError(f"starts, context_lens: a paged segment starts at a multiple of the page size, {run}")
    if context_ids.min() < 0 or context_ids.max() >= len(table):
        raise ValueError(f"context_ids: outside the page table of {len(table)} contexts")
    reach = context_lens + np.where(paged, lens, 0)
    if context_lens.min() < 0 or reach.max() > table.shape[1] * page:
        raise ValueError(f"context_lens: a context of {reach.max()} tokens needs more than {table.shape[1]} pages")
