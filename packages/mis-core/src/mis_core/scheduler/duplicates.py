"""Identical items of a request are computed once."""

import dataclasses
import secrets

import numpy as np
from jaxtyping import Int32

from mis_core.ragged import offsets, ramp, rows_at
from mis_core.requests import ScoreRequest

# Drawn per process: nobody outside can make different items look alike, and the tokens are compared anyway.
_RNG = np.random.default_rng(secrets.randbits(128))


def without_duplicates(request: ScoreRequest) -> tuple[ScoreRequest, Int32[np.ndarray, " items"] | None]:
    """Return the request with each distinct item once, and for every item its number among them.

    Items are identical if their tokens, their context and their labels are. They are grouped by a random
    linear hash of their tokens (Carter and Wegman, J. Comput. Syst. Sci. 18, 1979), then compared token
    by token. Without duplicates, the request itself and None; so too where more than the last row of each item is
    read, or tokens are drawn, each with a key of its own.
    """
    if request.read_lens is not None or request.query_reads or request.sampling is not None:
        return request, None
    lens = np.diff(request.item_starts)
    starts = request.item_starts[:-1]
    within = ramp(lens)
    factors = _RNG.integers(1, 2**63, int(lens.max()), np.uint64)
    hashes = np.add.reduceat((request.item_tokens.astype(np.uint64) + 1) * factors[within], starts)
    keys = [hashes, lens.astype(np.uint64), request.context_lens.astype(np.uint64)]
    if len(request.label_ids) > 1:
        label_factors = _RNG.integers(1, 2**63, request.label_ids.shape[1], np.uint64)
        keys.append(((request.label_ids + 2).astype(np.uint64) * label_factors).sum(1, dtype=np.uint64))
    order = np.lexsort(keys)
    alike = np.all([key[order[1:]] == key[order[:-1]] for key in keys], axis=0)
    if not alike.any():
        return request, None
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(np.r_[False, ~alike])
    first = np.full(group.max() + 1, len(order))
    np.minimum.at(first, group, np.arange(len(order)))
    if not _are_equal(request, first[group], lens):
        return request, None  # a collision of 64-bit hashes: compute every item, as if there were no duplicates
    kept = np.sort(first)
    numbers = np.searchsorted(kept, first[group]).astype(np.int32)
    return _chosen(request, kept, lens), numbers


def _are_equal(request: ScoreRequest, first: np.ndarray, lens: np.ndarray) -> bool:
    """Whether each item equals the first of its group."""
    tokens = request.item_tokens
    same_tokens = np.array_equal(rows_at(tokens, request.item_starts[:-1][first], lens), tokens)
    labels = request.label_ids
    return same_tokens and (len(labels) == 1 or np.array_equal(labels[first], labels))


def _chosen(request: ScoreRequest, items: np.ndarray, lens: np.ndarray) -> ScoreRequest:
    """Return the request with some of its items only."""
    kept_lens = lens[items]
    return dataclasses.replace(
        request,
        item_tokens=rows_at(request.item_tokens, request.item_starts[items], kept_lens),
        item_starts=offsets(kept_lens),
        context_lens=request.context_lens[items],
        label_ids=request.label_ids if len(request.label_ids) == 1 else request.label_ids[items],
    )
