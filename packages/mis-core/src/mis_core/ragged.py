"""Rows of different lengths that lie one after the other in a flat array."""

import numpy as np
from jaxtyping import Int32, Integer, Shaped


def offsets(lens: Integer[np.ndarray, " rows"]) -> Int32[np.ndarray, " rows_plus_one"]:
    """Return where each row begins, and the end of the last: `0, lens[0], lens[0] + lens[1], ...`."""
    starts = np.zeros(len(lens) + 1, np.int32)
    starts[1:] = lens.cumsum()
    return starts


def ramp(lens: Integer[np.ndarray, " rows"]) -> Integer[np.ndarray, " elements"]:
    """Return the place of every element in its row: `0 .. n - 1` for every `n` of `lens`, one after the other."""
    ends = np.cumsum(lens)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lens, lens)


def rows_at(
    flat: Shaped[np.ndarray, " all_elements"],
    starts: Integer[np.ndarray, " rows"],
    lens: Integer[np.ndarray, " rows"],
) -> Shaped[np.ndarray, " elements"]:
    """Return some rows of a flat array, one after the other."""
    return flat[np.repeat(starts, lens) + ramp(lens)]
