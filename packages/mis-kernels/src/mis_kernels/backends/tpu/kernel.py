"""The TPU kernel's body: one block of new tokens against its list of tiles.

Logits are held transposed, keys by rows: the running maximum and sum of a row are then lanes of
one vector register row instead of a register each, the maximum is taken without crossing lanes, and
a row's interval is a lane of an int32 vector. On 256-wide matrix units the second product fills the
array even with a head_dim of 128. Rows of a block are its tokens, once per query head of the group.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from mis_kernels.backends.tpu.fetch import Fetch, KernelShape, Ref, Scalar, Scratch, TileRefs
from mis_kernels.backends.tpu.tiles import KINDS

FULL, LIMITED, MASKED = range(KINDS)
TOTAL_ROWS = 16
"""Rows of ones under the values: one register row of bfloat16, of which only one is read."""
LOWEST = -1e30
"""Starting maximum: finite, so that a masked logit of minus infinity always weighs zero."""


class RowFacts(NamedTuple):
    """What each token of the block sees, `[1, block tokens]` int32."""

    context_id: Array
    context_len: Array
    segment_start: Array
    token: Array

    @property
    def live(self) -> Array:
        """Whether the token sees anything; padding does not."""
        return (self.context_len > 0) | (self.segment_start <= self.token)


def attention_kernel(*refs: Ref, shape: KernelShape) -> None:
    """Attend from one block of one KV head; grid `(kv_heads, blocks)`, sequential."""
    tiles, (facts_ref, q), hbm, out, scratch = TileRefs(*refs[:6]), refs[6:8], refs[8:12], refs[12], Scratch(*refs[13:])
    fetch = Fetch(tiles, hbm, scratch, shape)
    (head, block), heads = (pl.program_id(0), pl.program_id(1)), pl.num_programs(0)
    token = block * shape.blocks.tokens + lax.broadcasted_iota(jnp.int32, (1, shape.blocks.tokens), 1)
    facts = RowFacts(facts_ref[0:1], facts_ref[1:2], facts_ref[2:3], token)
    total = tiles.bounds[KINDS * pl.num_programs(1)]

    @pl.when((head == 0) & (block == 0) & (total > 0))
    def _() -> None:
        fetch.start(head, 0, 0)

    _load_rows(q, scratch.rows, shape)
    scratch.highest[...] = jnp.full_like(scratch.highest, LOWEST)
    scratch.weighted[...] = jnp.zeros_like(scratch.weighted)

    def visit(kind: int) -> None:
        def body(tile: Scalar, carry: None) -> None:
            slot = lax.rem(head * total + tile, 2)
            last = tile + 1 == total
            next_head, next_tile = jnp.where(last, head + 1, head), jnp.where(last, 0, tile + 1)

            @pl.when(next_head < heads)
            def _() -> None:
                fetch.start(next_head, next_tile, 1 - slot)

            fetch.wait(head, tile, slot)
            _attend(kind, tile, slot, facts, tiles, fetch, scratch, shape)

        lax.fori_loop(tiles.bounds[KINDS * block + kind], tiles.bounds[KINDS * block + kind + 1], body, None)

    for kind in range(KINDS):
        visit(kind)
    _store_rows(out, facts.live, scratch, shape)


def _load_rows(q: Ref, rows: Ref, shape: KernelShape) -> None:
    tokens, dim = shape.blocks.tokens, shape.head_dim
    for member in range(shape.group):
        rows[member * tokens : (member + 1) * tokens] = (
            q[:, member * dim : (member + 1) * dim] if shape.by_lanes else q[member]
        )


def _store_rows(out: Ref, live: Array, scratch: Scratch, shape: KernelShape) -> None:
    tokens, dim = shape.blocks.tokens, shape.head_dim
    for member in range(shape.group):
        rows = slice(member * tokens, (member + 1) * tokens)
        total = jnp.where(live, scratch.weighted[dim : dim + 1, rows], 1)
        result = jnp.where(live, scratch.weighted[:dim, rows] / total, 0).T.astype(out.dtype)
        if shape.by_lanes:
            out[:, member * dim : (member + 1) * dim] = result
        else:
            out[member] = result


def _intervals(tile: Scalar, facts: RowFacts, tiles: TileRefs, fetch: Fetch, shape: KernelShape) -> tuple[Array, Array]:
    """Return, for each row, the first visible key of the buffer and how many follow, `[1, rows]`."""
    own, context, first = tiles.context_id[tile] < 0, tiles.context_id[tile], tiles.first[tile]
    start = fetch.own_start(tile)
    # The clamped buffer of a last own tile repeats keys of the tile before: they begin at `first`.
    own_low = jnp.maximum(facts.segment_start, first) - start
    reach = jnp.where(facts.context_id == context, facts.context_len - first, 0)
    low = jnp.where(own, own_low, 0)
    count = jnp.maximum(jnp.where(own, facts.token + 1 - start, reach) - low, 0)
    return jnp.concatenate([low] * shape.group, axis=1), jnp.concatenate([count] * shape.group, axis=1)


def _attend(
    kind: int,
    tile: Scalar,
    slot: Scalar,
    facts: RowFacts,
    tiles: TileRefs,
    fetch: Fetch,
    scratch: Scratch,
    shape: KernelShape,
) -> None:
    """Take a tile into the online softmax of every strip of rows."""
    blocks, rows = shape.blocks, shape.rows
    strips = [slice(begin, min(begin + blocks.strip, rows)) for begin in range(0, rows, blocks.strip)]
    steps = [slice(begin, begin + blocks.key_step) for begin in range(0, blocks.keys, blocks.key_step)]
    intervals = _intervals(tile, facts, tiles, fetch, shape) if kind == MASKED else None
    keys, values = _keys(kind, scratch.k[slot], tiles.used[tile]), _values(kind, scratch.v[slot], tiles.used[tile])

    def logits(strip: slice) -> list[Array]:
        return [_dot(keys[step], scratch.rows[strip], (1, 1)) * shape.scale for step in steps]

    def weights(strip: slice, parts: list[Array]) -> tuple[Array, list[Array]]:
        parts = [_mask(part, step, strip, intervals) for part, step in zip(parts, steps, strict=True)]
        before = scratch.highest[:, strip]
        highest = before
        for part in parts:
            highest = jnp.maximum(highest, part.max(0, keepdims=True))
        fade = jnp.exp2(before - highest)
        scratch.highest[:, strip] = highest
        parts = [jnp.exp2(part - highest) for part in parts]
        return fade, [part.astype(values.dtype) for part in parts]

    def accumulate(strip: slice, fade: Array, parts: list[Array]) -> None:
        weighted = scratch.weighted[:, strip] * fade
        for part, step in zip(parts, steps, strict=True):
            weighted = weighted + _dot(values[:, step], part, (1, 0))
        scratch.weighted[:, strip] = weighted

    # Written out as a pipeline, since the compiler keeps the order of what it is given: while the
    # vector units work on one strip, the matrix units have the next one's logits and the last one's sum.
    ahead = logits(strips[0])
    behind: list[tuple[slice, Array, list[Array]]] = []
    for index, strip in enumerate(strips):
        parts = ahead
        if index + 1 < len(strips):
            ahead = logits(strips[index + 1])
        for weighted_strip in behind:
            accumulate(*weighted_strip)
        behind = [(strip, *weights(strip, parts))]
    accumulate(*behind[0])


def _dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dimensions = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _keys(kind: int, keys: Array, used: Array) -> Array:
    """Replace keys past the end of a limited tile by a visible one, which leaves every row's maximum as it is."""
    if kind != LIMITED:
        return keys
    keep = lax.broadcasted_iota(jnp.int32, (keys.shape[0], 1), 0) < used
    wide = keys.astype(jnp.float32)
    return jnp.where(keep, wide, wide[:1]).astype(keys.dtype)


def _values(kind: int, values: Array, used: Array) -> Array:
    """Return values by columns, and rows of ones below them whose product is the sum of the weights.

    Values that nobody sees are cleared: memory there may hold NaN, and 0 * NaN is NaN. Past the end
    of a limited tile the ones are cleared too, so that its logits need no mask.
    """
    count = values.shape[0]
    ones = jnp.ones((TOTAL_ROWS, count), jnp.float32)
    if kind != FULL:
        wide = values.astype(jnp.float32)
        # In a masked tile any row may be a neighbour's, whose trouble is not ours.
        keep = lax.broadcasted_iota(jnp.int32, (count, 1), 0) < used if kind == LIMITED else jnp.abs(wide) < jnp.inf
        values = jnp.where(keep, wide, 0).astype(values.dtype)
    if kind == LIMITED:
        ones = jnp.where(lax.broadcasted_iota(jnp.int32, ones.shape, 1) < used, ones, 0)
    return jnp.concatenate([values.T, ones.astype(values.dtype)], axis=0)


def _mask(logits: Array, step: slice, strip: slice, intervals: tuple[Array, Array] | None) -> Array:
    if intervals is None:
        return logits
    low, count = intervals
    key = lax.broadcasted_iota(jnp.int32, logits.shape, 0)
    # One comparison for both ends: below the interval, the difference wraps to a large number.
    behind = (key - (low[:, strip] - step.start)).astype(jnp.uint32)
    return jnp.where(behind < count[:, strip].astype(jnp.uint32), logits, -jnp.inf)
