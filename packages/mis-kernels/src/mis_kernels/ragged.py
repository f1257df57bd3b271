"""Arithmetic of flat arrays whose parts have lengths."""

import numpy as np


def ramp(lens: np.ndarray) -> np.ndarray:
    """Return `0 .. n - 1` for every n of `lens`, one after the other, int64."""
    return np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
