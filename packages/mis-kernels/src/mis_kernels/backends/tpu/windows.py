"""Rows of a chunk inside the TPU kernel of recurrent layers, wherever they lie: in two windows of `WINDOW` rows."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from mis_kernels.backends.tpu.delta_rule import WINDOW
from mis_kernels.backends.tpu.fetch import LANES, Ref
from mis_kernels.recurrence import CHUNK

ALIGNED = 16
"""Rows of a tile of bfloat16 in memory."""

FETCHED = WINDOW + ALIGNED
"""Rows from a whole tile on that hold a window, wherever it begins."""

_BEFORE = 8
"""Rows of scratch memory before those, for inputs before a window; a tile of float32."""

SCRATCH_ROWS = _BEFORE + FETCHED + WINDOW
"""Rows of scratch memory for a window: one may begin at the last row that is fetched."""


class HeadInputs(NamedTuple):
    """The inputs of one head's queries, keys or values.

    Attributes:
        inputs: Those of all rows, `[tokens, channels]`.
        taps: Factors of the convolution, `[taps, channels]`.
        lanes: Which channels of both.
    """

    inputs: Ref
    taps: Ref
    lanes: slice


class RowWindow(NamedTuple):
    """Where rows begin, how many there are, and from which row on they are fetched."""

    first: Array
    length: Array
    fetched: Array

    @classmethod
    def at(cls, first: Array, length: Array, tokens: int) -> Self:
        """Return a window of an array of `tokens` rows; one without rows may begin anywhere."""
        first = jnp.minimum(first, tokens - 1)
        fetched = pl.multiple_of(jnp.minimum(first & -ALIGNED, tokens - FETCHED), ALIGNED)
        return cls(first, length, fetched)

    @property
    def row(self) -> Array:
        """Where its first row is in scratch memory."""
        return _BEFORE + self.first - self.fetched


class WindowPair:
    """Two windows: the halves of one chunk, or two short chunks.

    Attributes:
        is_one: Whether they are those of one chunk.
    """

    def __init__(
        self, parts: Sequence[HeadInputs], joined: Ref, first: RowWindow, second: RowWindow, *, is_one: Array
    ) -> None:
        self.parts, self.joined, self.both, self.is_one = parts, joined, (first, second), is_one
        row = lax.broadcasted_iota(jnp.int32, (CHUNK, 1), 0)
        self._is_used = row < jnp.where(row < WINDOW, first.length, WINDOW + second.length)

    def mixed(self, before: Ref, start: Array) -> list[Array]:
        """Convolve the inputs of each part, and apply SiLU.

        Args:
            before: Last inputs of states, `[states, taps - 1, parts * LANES]`.
            start: That before the first row of a chunk.

        Returns:
            `[CHUNK, LANES]` of each part, zeros where there is no row.
        """
        return [self._mixed(number, part, before.at[start]) for number, part in enumerate(self.parts)]

    def _mixed(self, number: int, part: HeadInputs, before: Ref) -> Array:
        taps, lanes = part.taps.shape[0], slice(number * LANES, (number + 1) * LANES)
        found = []
        for index, window in enumerate(self.both):
            here, begin = self.joined.at[index, number], window.row - (taps - 1)
            last = before[:, lanes]
            if index:
                of_first = self.joined[0, number, pl.ds(self.both[0].row + WINDOW - (taps - 1), taps - 1)]
                last = jnp.where(self.is_one, of_first, last)
            fetched = part.inputs[pl.ds(window.fetched, FETCHED), part.lanes]
            here[_BEFORE : _BEFORE + FETCHED] = fetched.astype(jnp.float32)
            here[pl.ds(begin, taps - 1)] = last
            rows = (here[pl.ds(begin + tap, WINDOW)] * part.taps[tap : tap + 1, part.lanes] for tap in range(taps))
            found.append(sum(rows))
        return jnp.where(self._is_used, jax.nn.silu(jnp.concatenate(found)), 0.0)

    def rows(self, x: Ref) -> Array:
        """Return the rows of an array in float32 that has `WINDOW` more, `[CHUNK, ...]`, zeros where there is none."""
        both = jnp.concatenate([x[pl.ds(window.first, WINDOW)] for window in self.both])
        return jnp.where(self._is_used, both, 0.0)

    def write(self, x: Ref, rows: Array) -> None:
        """Put rows in their places in such an array, and nothing else."""
        row = lax.broadcasted_iota(jnp.int32, (WINDOW, 1), 0)
        for index, window in enumerate(self.both):
            here = pl.ds(window.first, WINDOW)
            x[here] = jnp.where(row < window.length, rows[index * WINDOW : (index + 1) * WINDOW], x[here])

    def keep_inputs(self, last: Ref) -> None:
        """Keep the last inputs of one chunk, `[taps - 1, parts * LANES]`; of a short one, some of those before it."""
        (first, second), kept = self.both, last.shape[0]
        index = (second.length > 0).astype(jnp.int32)
        end = jnp.where(second.length > 0, second.row + second.length, first.row + first.length)
        for number in range(len(self.parts)):
            rows = self.joined[index, number, pl.ds(end - kept, kept)]
            last[:, number * LANES : (number + 1) * LANES] = rows
