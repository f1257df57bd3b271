"""Steps: from a request's arrays to the packed arrays of each device call.

The layout is `prefill_extend`: first the query's tokens, written to pages, then steps of items only,
each item a segment whose context is the query. An item too long to live in one step's own tiles
becomes a paged segment with temporary pages. Nothing here loops over items.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32

from mis_core.request import ScoreRequest

PAGE_SIZE = 64
LONG_ITEM = 256
"""Longest segment, in tokens, that keeps its K/V among the new tokens of its step."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One device call, on the host.

    Attributes:
        token_ids: New tokens, segment after segment, `[new_tokens]`.
        positions: Position of each in its sequence, `[new_tokens]`.
        starts: First row of each segment in the packed step, `[segments]`.
        lens: New tokens of each segment, `[segments]`.
        context_lens: Cached tokens before the segment, `[segments]`.
        paged: Whether the segment's K/V are written to the context's pages, `[segments]`.
        page_table: Pages of the step's context, in order, `[pages]`.
        scored_rows: Rows whose next-token distribution is read, `[scored]`.
        scored_items: Item that each of them belongs to, `[scored]`.
    """

    token_ids: Int32[np.ndarray, " new_tokens"]
    positions: Int32[np.ndarray, " new_tokens"]
    starts: Int32[np.ndarray, " segments"]
    lens: Int32[np.ndarray, " segments"]
    context_lens: Int32[np.ndarray, " segments"]
    paged: Bool[np.ndarray, " segments"]
    page_table: Int32[np.ndarray, " pages"]
    scored_rows: Int32[np.ndarray, " scored"]
    scored_items: Int32[np.ndarray, " scored"]


def plan_request(request: ScoreRequest, token_budget: int, pages_per_context: int) -> Iterator[StepPlan]:
    """Cut a request into steps of at most `token_budget` new tokens (a multiple of the page size).

    The query lives in pages `0 .. pages_per_context - 1` of the cache, a long item in as many after
    them.
    """
    query_pages = np.arange(pages_per_context, dtype=np.int32)
    shared = int(request.context_lens.max())
    yield from _paged(request.query[:shared], 0, query_pages, token_budget, item=None)
    lens = np.diff(request.item_starts)
    short = np.flatnonzero(lens <= LONG_ITEM).astype(np.int32)
    yield from _extend(request, short, query_pages, token_budget)
    for item in np.flatnonzero(lens > LONG_ITEM):
        context_len = int(request.context_lens[item])
        kept = context_len - context_len % PAGE_SIZE  # a shared page is never written: its tail is computed again
        tail = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        tokens = np.concatenate([request.query[kept:context_len], tail])
        table = np.where(query_pages < kept // PAGE_SIZE, query_pages, query_pages + pages_per_context)
        yield from _paged(tokens, kept, table.astype(np.int32), token_budget, item=int(item))


def _paged(
    tokens: np.ndarray, context_len: int, table: np.ndarray, budget: int, item: int | None
) -> Iterator[StepPlan]:
    """Compute one paged segment in chunks; score its last token if it is an item's."""
    for begin in range(0, len(tokens), budget):
        chunk = tokens[begin : begin + budget]
        last = item is not None and begin + budget >= len(tokens)
        yield StepPlan(
            token_ids=chunk,
            positions=np.arange(context_len + begin, context_len + begin + len(chunk), dtype=np.int32),
            starts=np.zeros(1, np.int32),
            lens=np.array([len(chunk)], np.int32),
            context_lens=np.array([context_len + begin], np.int32),
            paged=np.ones(1, bool),
            page_table=table,
            scored_rows=np.array([len(chunk) - 1] if last else [], np.int32),
            scored_items=np.array([item] if last else [], np.int32),
        )


def _extend(request: ScoreRequest, items: np.ndarray, table: np.ndarray, budget: int) -> Iterator[StepPlan]:
    """Compute items behind the cached query, as many per step as fit."""
    lens = np.diff(request.item_starts)[items]
    ends = np.cumsum(lens)
    first = 0
    while first < len(items):
        done = ends[first] - lens[first]
        last = int(np.searchsorted(ends, done + budget, side="right"))
        chosen, chosen_lens = items[first:last], lens[first:last]
        starts = (ends[first:last] - chosen_lens - done).astype(np.int32)
        in_segment = np.arange(chosen_lens.sum()) - np.repeat(starts, chosen_lens)
        context_lens = request.context_lens[chosen]
        yield StepPlan(
            token_ids=request.item_tokens[np.repeat(request.item_starts[chosen], chosen_lens) + in_segment],
            positions=(np.repeat(context_lens, chosen_lens) + in_segment).astype(np.int32),
            starts=starts,
            lens=chosen_lens,
            context_lens=context_lens,
            paged=np.zeros(len(chosen), bool),
            page_table=table,
            scored_rows=starts + chosen_lens - 1,
            scored_items=chosen,
        )
        first = last
