"""Segments of a request, as arrays: how each item continues the query.

`ScoreRequest` states the invariants these arrays keep. Nothing here loops over items.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Integer

from mis_core.ragged import offsets, ramp, rows_at


class Joined(NamedTuple):
    """A query and its items in the form of `ScoreRequest`, whose first fields these become.

    Attributes:
        query: Shared tokens, `[query_tokens]`.
        item_tokens: New tokens of all segments, `[item_tokens]`.
        item_starts: Offsets into `item_tokens`, `[items + 1]`.
        context_lens: Query tokens each segment sees, `[items]`.
    """

    query: Int32[np.ndarray, " query_tokens"]
    item_tokens: Int32[np.ndarray, " item_tokens"]
    item_starts: Int32[np.ndarray, " items_plus_one"]
    context_lens: Int32[np.ndarray, " items"]

    def rows(self, items: Integer[np.ndarray, " rows"]) -> "Joined":
        """Return the query with some of the items only."""
        lens = np.diff(self.item_starts)[items]
        tokens = rows_at(self.item_tokens, self.item_starts[items], lens)
        return Joined(self.query, tokens, offsets(lens), self.context_lens[items])

    def sequence(self, item: int) -> Int32[np.ndarray, " tokens"]:
        """Return one item's whole sequence, its context first: what a pointwise pass would read."""
        segment = self.item_tokens[self.item_starts[item] : self.item_starts[item + 1]]
        return np.concatenate([self.query[: self.context_lens[item]], segment])

    def framed(self, head: Integer[np.ndarray, " query_tokens"], tail: Integer[np.ndarray, " tail_tokens"]) -> "Joined":
        """Return the same with ids before the query, which every segment sees, and after every item."""
        lens = np.diff(self.item_starts)
        return Joined(
            np.concatenate([head, self.query]).astype(np.int32),
            np.insert(self.item_tokens, np.repeat(self.item_starts[1:], len(tail)), np.tile(tail, len(lens))),
            offsets(lens + len(tail)),
            self.context_lens + np.int32(len(head)),
        )


NOTHING = Joined(np.empty(0, np.int32), np.empty(0, np.int32), np.zeros(1, np.int32), np.empty(0, np.int32))
"""No items, and so no query."""


def join_ids(
    query: Integer[np.ndarray, " query_tokens"],
    tokens: Integer[np.ndarray, " item_tokens"],
    lens: Integer[np.ndarray, " items"],
    item_first: bool,
) -> Joined:
    """Join a query and items given as token ids; ids are taken as they are.

    Args:
        query: The query's tokens, at least one.
        tokens: All items' tokens, item after item.
        lens: Tokens of each item; 0 is an empty item, scored at the query's last token.
        item_first: Put each item before the query; then nothing is shared.
    """
    query = query.astype(np.int32)
    if item_first:
        return _put_items_first(query, tokens.astype(np.int32), lens)
    if np.count_nonzero(lens) == len(lens):
        contexts = np.full(len(lens), len(query), np.int32)
        return Joined(query, tokens.astype(np.int32), offsets(lens), contexts)
    empty = lens == 0
    begins = np.cumsum(lens) - lens
    return Joined(
        query=query,
        item_tokens=np.insert(tokens.astype(np.int32), begins[empty], query[-1]),
        item_starts=offsets(np.maximum(lens, 1)),
        context_lens=(len(query) - empty).astype(np.int32),
    )


def cut_segments(
    query: Int32[np.ndarray, " query_tokens"],
    tokens: Int32[np.ndarray, " tail_tokens"],
    lens: Integer[np.ndarray, " items"],
    head_len: int,
) -> Joined:
    """Share as much of the query as each item's joined sequence begins with.

    The longest common prefix is always a correct context, whatever produced the sequences. At least
    one token stays in the segment, because its last token is the scored one.

    Args:
        query: Tokens of the query alone.
        tokens: Every joined sequence from token `head_len` on, one after the other.
        lens: Tokens of each of them, at least one.
        head_len: Tokens at the beginning known to be the query's own.
    """
    tail = query[head_len:]
    index = ramp(lens)
    equal = index < len(tail)
    equal[equal] = tail[index[equal]] == tokens[equal]
    shared = np.minimum.reduceat(np.where(equal, np.repeat(lens, lens), index), offsets(lens)[:-1])
    shared = np.minimum(shared, lens - 1)
    return Joined(
        query=query,
        item_tokens=tokens[index >= np.repeat(shared, lens)],
        item_starts=offsets(lens - shared),
        context_lens=(head_len + shared).astype(np.int32),
    )


def whole_sequences(tokens: Int32[np.ndarray, " tokens"], lens: Integer[np.ndarray, " items"]) -> Joined:
    """Make each sequence one segment of its own that sees no query."""
    return Joined(np.empty(0, np.int32), tokens, offsets(lens), np.zeros(len(lens), np.int32))


def _put_items_first(query: np.ndarray, tokens: np.ndarray, lens: np.ndarray) -> Joined:
    before = np.repeat(np.arange(len(lens)) * len(query), lens)  # each item's tokens go before its copy of the query
    return whole_sequences(np.insert(np.tile(query, len(lens)), before, tokens), lens + len(query))
