"""The gated delta rule for a block of rows of some value heads, inside the TPU kernel.

As in `mis_kernels.backends.xla.delta_rule`: the updates of a chunk's rows are one unit lower triangular system, and
everything else is products. A block has two windows. They hold the two halves of one chunk, or two chunks that start
from the same state; then what a row of one would have of the other is zero. A window's rows are computed in the same
way whichever it is, so a short chunk has the same bits beside another, and alone.

Matrices of a row for each row are *packed*: those of all heads lie side by side, `[CHUNK, heads * CHUNK]`. Products of
several heads are one, with a matrix that has theirs along its diagonal, so that they fill a matrix unit.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from mis_kernels.backends.tpu.fetch import LANES
from mis_kernels.recurrence import CHUNK

WINDOW = CHUNK // 2
"""Rows of a window."""

_BLOCK = WINDOW // 2
"""Rows of a diagonal block of the triangular system, which substitution inverts."""

_LEAST_DECAY = -128.0
"""Log of a decay that is zero in float32; sums of such numbers stay finite."""


_MOST_VALUE = 2.0**126
"""Values up to here stay finite where products split them into parts of bfloat16."""


class BlockRows(NamedTuple):
    """What the rows of a block have, of each head; zero where there is no row.

    Attributes:
        queries: `[CHUNK, LANES]`, normalised and scaled.
        keys: Likewise.
        values: `[CHUNK, LANES]`.
        decay: Logs of decays, `[CHUNK, 1]`.
        rate: How much of each row is learnt, likewise.
    """

    queries: Sequence[Array]
    keys: Sequence[Array]
    values: Sequence[Array]
    decay: Sequence[Array]
    rate: Sequence[Array]


class LearntRows(NamedTuple):
    """What a chunk changes about memory.

    Attributes:
        values: What is new of each row, of each head, `[CHUNK, LANES]`.
        from_start: Factor by which memory fades up to each row, of each head, `[CHUNK, 1]`.
        to_end: Factor by which each row fades up to the chunk's end, `[1, heads * CHUNK]`.
    """

    values: Sequence[Array]
    from_start: Sequence[Array]
    to_end: Array


def read_and_solve(
    rows: BlockRows, memory: Sequence[Array], is_one: Array, unit: int
) -> tuple[list[Array], LearntRows]:
    """Return what each row reads, and what the chunk learns: `forget_and_learn` makes the state after it of that.

    Args:
        rows: Of the block.
        memory: State before the block, of each head, `[LANES, LANES]`.
        is_one: Whether the windows are those of one chunk.
        unit: Width of a matrix unit.

    Returns:
        `[CHUNK, LANES]` of each head, and what is learnt.
    """
    heads = len(rows.values)
    both = [jnp.concatenate(each) for each in zip(rows.queries, rows.keys, strict=True)]
    overlaps = jnp.concatenate(_products(both, rows.keys, unit // LANES, transposed=True), axis=1)
    of_memory = [x for each in _products(both, memory, unit // LANES) for x in _split(each, LANES)]

    is_seen = _is_seen(heads, is_one)
    between = _sums_between(rows.decay)
    fade = jnp.exp(between)
    from_start = [_from_start(between, rows.decay, head, is_one) for head in range(heads)]
    row, column = _positions(heads)
    # Selected, not multiplied by zero: what one item has may not be finite.
    lower = jnp.where(is_seen & (row > column), overlaps[CHUNK:] * fade * _spread(rows.rate), 0.0)
    inverse = _inverse(lower, heads, unit)
    right = [
        rate * (v - start * found[CHUNK:])
        for rate, v, start, found in zip(rows.rate, rows.values, from_start, of_memory, strict=True)
    ]
    values = _packed_products(inverse, right, unit)
    within = _packed_products(jnp.where(is_seen, overlaps[:CHUNK] * fade, 0.0), values, unit)
    out = [start * found[:CHUNK] + own for start, found, own in zip(from_start, of_memory, within, strict=True)]
    return out, LearntRows(values, from_start, fade[-1:])


def forget_and_learn(memory: Sequence[Array], keys: Sequence[Array], learnt: LearntRows, unit: int) -> list[Array]:
    """Return the state of each head after a chunk, whose rows have these keys."""
    after: list[Array] = []
    for first, last in _runs(len(memory), unit // LANES):
        faded = jnp.concatenate(keys[first:last]).T * learnt.to_end[:, first * CHUNK : last * CHUNK]
        news = _split(_product(faded, _diagonal(learnt.values[first:last])), LANES)
        for old, start, new in zip(memory[first:last], learnt.from_start[first:last], news, strict=True):
            after.append(old * start[-1:] + new)
    return after


def are_bounded(learnt: LearntRows) -> Array:
    """Return whether no product of a row of one window and a zero of the other was anything but zero.

    Whatever is not finite makes what its own window learns so, and by products what the other does.
    """
    exceeds = [jnp.where(jnp.abs(values) < _MOST_VALUE, 0.0, 1.0) for values in learnt.values]  # NaN does, too
    return jnp.max(functools.reduce(jnp.maximum, exceeds)) == 0.0


def _positions(heads: int) -> tuple[Array, Array]:
    """Return rows and columns of packed matrices."""
    shape = CHUNK, heads * CHUNK
    return lax.broadcasted_iota(jnp.int32, shape, 0), lax.broadcasted_iota(jnp.int32, shape, 1) & (CHUNK - 1)


def _is_seen(heads: int, is_one: Array) -> Array:
    """Return whether a row sees another: itself, and those before it of its chunk."""
    row, column = _positions(heads)
    first = jnp.where(is_one | (row < WINDOW), 0, WINDOW)
    return (row >= column) & (column >= first)


def _spread(columns: Sequence[Array]) -> Array:
    """Return a column of each head as packed matrices, whose columns are all alike."""
    lane = lax.broadcasted_iota(jnp.int32, (CHUNK, LANES), 1)
    tiles = [
        jnp.where(lane < CHUNK, columns[first], columns[min(first + 1, len(columns) - 1)])
        for first in range(0, len(columns), LANES // CHUNK)
    ]
    return jnp.concatenate(tiles, axis=1)[:, : len(columns) * CHUNK]


def _sums_between(decay: Sequence[Array]) -> Array:
    """Return the sums of logs of decays to the first of two rows from the second, packed.

    Logarithms are added up from one row to another. As differences of sums from the chunk's begin they would lose
    digits after a strong decay.
    """
    row, column = _positions(len(decay))
    between = jnp.where(row > column, jnp.maximum(_spread(decay), _LEAST_DECAY), 0.0)
    for distance in (2**power for power in range(CHUNK.bit_length() - 1)):
        between = between + jnp.where(row >= distance, pltpu.roll(between, distance, 0), 0.0)
    return between


def _from_start(between: Array, decay: Sequence[Array], head: int, is_one: Array) -> Array:
    """Return the factors by which memory fades from the begin of a row's chunk to the row."""
    row = lax.broadcasted_iota(jnp.int32, (CHUNK, 1), 0)
    first, second = (
        between[:, head * CHUNK + begin : head * CHUNK + begin + 1]
        + jnp.maximum(decay[head][begin : begin + 1], _LEAST_DECAY)
        for begin in (0, WINDOW)
    )
    return jnp.exp(jnp.where(row < jnp.where(is_one, CHUNK, WINDOW), first, second))


def _inverse(lower: Array, heads: int, unit: int) -> Array:
    """Invert `1 + lower`, strictly lower, packed: blocks along the diagonal by substitution, then twice as large ones.

    Powers of `lower`, which would need fewer operations one after another, grow far beyond float32 where keys repeat.
    """
    row, column = _positions(heads)
    inverse = _inverse_of_blocks(lower, heads)
    for size in (_BLOCK, WINDOW):
        below = (row & size != 0) & (column & size == 0) & (row & -2 * size == column & -2 * size)
        left = _packed_with_packed(inverse, jnp.where(below, lower, 0.0), unit)
        inverse = inverse - _packed_with_packed(left, inverse, unit)
    return inverse


def _inverse_of_blocks(lower: Array, heads: int) -> Array:
    """Invert the blocks along the diagonals of `1 + lower`, row by row of all of them at once."""
    lane, row = (lax.broadcasted_iota(jnp.int32, (CHUNK, LANES), axis) for axis in (1, 0))
    block = row & -_BLOCK
    tiles = _split(jnp.pad(lower, ((0, 0), (0, -heads * CHUNK % LANES))), LANES)
    # One block of each head lies beside the other, lanes being scarce.
    source = (lane & _BLOCK) * (CHUNK // _BLOCK) + block + (lane & (_BLOCK - 1))
    factors = jnp.zeros((CHUNK, LANES), jnp.float32)
    for number, tile in enumerate(tiles):
        factors = jnp.where(lane & -2 * _BLOCK == number * 2 * _BLOCK, _lanes(tile, source), factors)
    inverse = jnp.where(lane & (_BLOCK - 1) == row & (_BLOCK - 1), 1.0, 0.0)
    for solved in range(_BLOCK - 1):
        known = [
            jnp.broadcast_to(inverse[first + solved : first + solved + 1], (_BLOCK, LANES))
            for first in range(0, CHUNK, _BLOCK)
        ]
        inverse = inverse - _lanes(factors, (lane & -_BLOCK) + solved) * jnp.concatenate(known)
    spread = [
        jnp.where(
            lane & (CHUNK - _BLOCK) == block,
            _lanes(inverse, 2 * number * _BLOCK + (lane >> 2 & _BLOCK) + (lane & (_BLOCK - 1))),
            0.0,
        )
        for number in range(len(tiles))
    ]
    return jnp.concatenate(spread, axis=1)[:, : heads * CHUNK]


def _lanes(x: Array, source: Array) -> Array:
    """Return each row's elements from other lanes."""
    return jnp.take_along_axis(x, source, axis=1, mode="promise_in_bounds")


def _packed_with_packed(a: Array, b: Array, unit: int) -> Array:
    """Multiply the packed matrices of each head with one another."""
    heads, found = b.shape[1] // CHUNK, []
    for first, last in _runs(heads, unit // CHUNK):
        own = b[:, first * CHUNK : last * CHUNK]
        begin = lax.broadcasted_iota(jnp.int32, own.shape, 1) & -CHUNK
        diagonal = jnp.concatenate([jnp.where(begin == each * CHUNK, own, 0.0) for each in range(last - first)])
        found.append(_product(a[:, first * CHUNK : last * CHUNK], diagonal))
    return jnp.concatenate(found, axis=1)


def _packed_products(a: Array, b: Sequence[Array], unit: int) -> list[Array]:
    """Multiply the packed matrix of each head with its other one, `[CHUNK, LANES]`."""
    found: list[Array] = []
    for first, last in _runs(len(b), unit // LANES):
        found += _split(_product(a[:, first * CHUNK : last * CHUNK], _diagonal(b[first:last])), LANES)
    return found


def _products(a: Sequence[Array], b: Sequence[Array], together: int, *, transposed: bool = False) -> list[Array]:
    """Multiply the two matrices of each head, some heads together, whose products lie side by side."""
    return [
        _product(jnp.concatenate(a[first:last], axis=1), _diagonal(b[first:last]), transposed=transposed)
        for first, last in _runs(len(a), together)
    ]


def _diagonal(matrices: Sequence[Array]) -> Array:
    """Return one matrix that has some along its diagonal, and zeros elsewhere."""
    empty = jnp.zeros_like(matrices[0])
    return jnp.concatenate(
        [
            jnp.concatenate([matrix if other == number else empty for other in range(len(matrices))], axis=1)
            for number, matrix in enumerate(matrices)
        ]
    )


def _runs(heads: int, together: int) -> list[tuple[int, int]]:
    """Return the first head, and that after the last, of those that are multiplied together."""
    return [(first, min(first + together, heads)) for first in range(0, heads, together)]


def _split(x: Array, width: int) -> list[Array]:
    return [x[:, first : first + width] for first in range(0, x.shape[1], width)]


def _product(a: Array, b: Array, *, transposed: bool = False) -> Array:
    axes = ((1,), (1 if transposed else 0,)), ((), ())
    return lax.dot_general(a, b, axes, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
