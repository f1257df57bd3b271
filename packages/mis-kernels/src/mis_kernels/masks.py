"""Masks of multi-item sequences: two intervals per row, and what can be made from them.

Segments need no mask. The `dense` mode, which is the baseline of measurements, makes its masks of these. They
also serve tests, and users who want masks alone. A packed sequence is a query, or a query and a delimiter,
followed by items; a row of an item sees the whole prefix and the earlier tokens of its own item.

Host arrays give host arrays, and device arrays give device arrays, under `jit` too. `Intervals` cost a
few integers per row; `dense_mask` is the only thing here that grows with rows x keys.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from mis_kernels.segments import IntArray, Segments, ramp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Intervals:
    """Row `r` sees the keys from `first_start[r]` to `first_stop[r]` and from `second_start[r]` to `second_stop[r]`.

    Stops are exclusive; an empty interval has its stop at or before its start; the two do not overlap.
    All are int32, `[rows]`.
    """

    first_start: IntArray
    first_stop: IntArray
    second_start: IntArray
    second_stop: IntArray


def intervals_of_lengths(prefix_len: int, item_lens: Int[np.ndarray, " items"], rows: int | None = None) -> Intervals:
    """Describe a packed sequence of a prefix and items, given their lengths in tokens.

    Args:
        prefix_len: Tokens that every item sees, a delimiter included if there is one.
        item_lens: Tokens of each item; an item may be empty.
        rows: Length to pad to; padding rows see nothing.

    Raises:
        ValueError: a length is negative, or `rows` is too small.
    """
    lens = np.asarray(item_lens, np.int64)
    if prefix_len < 0 or np.any(lens < 0):
        raise ValueError("prefix_len, item_lens: lengths must not be negative")
    used = prefix_len + int(lens.sum())
    rows = used if rows is None else rows
    if rows < used:
        raise ValueError(f"rows: {rows} are fewer than the sequence's {used} tokens")
    row = np.arange(rows)
    start = np.zeros(rows, np.int64)
    start[prefix_len:used] = np.repeat(prefix_len + np.cumsum(lens) - lens, lens)
    in_item = (row >= prefix_len) & (row < used)
    stop = np.where(row < used, row + 1, 0)
    return _intervals(np.zeros(rows), np.where(in_item, prefix_len, 0), start, stop)


def intervals_of_delimiters(token_ids: Int[np.ndarray, " tokens"], delimiter: int) -> Intervals:
    """Describe `query d item d item d ... item d`: the first delimiter is seen by all, others end their own item.

    Raises:
        ValueError: the sequence has no query, fewer than two delimiters, or does not end with one.
    """
    prefix_len, lens = _blocks(token_ids, delimiter)
    return intervals_of_lengths(prefix_len, lens)


def positions_of_lengths(prefix_len: int, item_lens: Int[np.ndarray, " items"]) -> Int32[np.ndarray, " tokens"]:
    """Return position ids: every item continues from the end of the prefix, as if it were alone."""
    lens = np.asarray(item_lens, np.int64)
    return np.concatenate([np.arange(prefix_len), prefix_len + ramp(lens)]).astype(np.int32)


def positions_of_delimiters(token_ids: Int[np.ndarray, " tokens"], delimiter: int) -> Int32[np.ndarray, " tokens"]:
    """Return position ids of a delimited sequence: every delimiter has the position of the first.

    So `[10, 11, 99, 21, 22, 99, 31, 99]` with delimiter 99 gives `[0, 1, 2, 3, 4, 2, 3, 2]`.

    Raises:
        ValueError: as in `intervals_of_delimiters`.
    """
    prefix_len, lens = _blocks(token_ids, delimiter)
    positions = positions_of_lengths(prefix_len, lens)
    positions[np.asarray(token_ids) == delimiter] = prefix_len - 1
    return positions


def intervals_of_segments(segments: Segments, page_size: int) -> Intervals:
    """Describe a step: keys are the slots of the page table, context after context, then the new tokens."""
    xp = jnp if isinstance(segments.context_len, jax.Array) else np
    contexts, pages = np.shape(segments.page_table)
    slots = pages * page_size
    start = xp.asarray(segments.context_id) * slots
    token = xp.arange(segments.num_tokens)
    first_new = contexts * slots
    second = first_new + xp.asarray(segments.own_first), first_new + token + 1
    return _intervals(start + segments.context_first, start + segments.context_len, *second)


def dense_mask(intervals: Intervals, keys: int) -> Bool[Array, "rows keys"] | Bool[np.ndarray, "rows keys"]:
    """Return which keys each row sees."""
    xp = jnp if isinstance(intervals.first_start, jax.Array) else np
    key = xp.arange(keys)
    parts = ((intervals.first_start, intervals.first_stop), (intervals.second_start, intervals.second_stop))
    first, second = ((key >= start[:, None]) & (key < stop[:, None]) for start, stop in parts)
    return first | second


def _intervals(*bounds: IntArray) -> Intervals:
    return Intervals(*(bound.astype(np.int32) for bound in bounds))


def _blocks(token_ids: np.ndarray, delimiter: int) -> tuple[int, np.ndarray]:
    """Return the prefix's length with its delimiter, and the items' lengths with theirs."""
    where = np.flatnonzero(np.asarray(token_ids) == delimiter)
    if len(where) < 2:
        raise ValueError(f"token_ids: a query and an item need two delimiters {delimiter}, found {len(where)}")
    if where[0] == 0:
        raise ValueError("token_ids: the query before the first delimiter is empty")
    if where[-1] != len(token_ids) - 1:
        raise ValueError("token_ids: the last item does not end with the delimiter")
    return int(where[0]) + 1, np.diff(where)
