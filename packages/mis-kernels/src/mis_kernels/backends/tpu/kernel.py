"""The TPU kernel's body: one block of new tokens against its list of tiles.

Logits are held transposed, keys by rows: the anchor and the sum of a row are then lanes of one vector
register row instead of a register each, and a row's interval is a lane of an int32 vector. On 256-wide
matrix units the second product fills the array even with a head_dim of 128. Rows of a block are its
tokens, once per query head of the group.

Weights are relative to an anchor that a row has from the start, the logit of its own key: no maximum
has to be known before the first exponential, and the sum is at least about one. A row whose sum leaves
the range where that is safe, since another key's logit is higher by 70 or more, is computed once more,
relative to the running maximum (arXiv 1805.02867); the rows beside it keep what they have. Which of the
two a row has, and every bit of it, depends on what the row itself sees.
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
SAFE = 2.0**-100, 2.0**100
"""Sums of weights between which no weight has overflown, none that matters is lost, and values up to 2^27 fit."""


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
    tiles, (facts_ref, q, k), hbm, out = TileRefs(*refs[:6]), refs[6:9], refs[9:13], refs[13]
    scratch = Scratch(*refs[14:])
    fetch = Fetch(tiles, hbm, scratch, shape)
    head, block = pl.program_id(0), pl.program_id(1)
    token = block * shape.blocks.tokens + lax.broadcasted_iota(jnp.int32, (1, shape.blocks.tokens), 1)
    facts = RowFacts(facts_ref[0:1], facts_ref[1:2], facts_ref[2:3], token)
    fetch.begin(head, block)
    _load_rows(q, k, scratch, shape)
    scratch.weighted[...] = jnp.zeros_like(scratch.weighted)

    def visit(kind: int) -> None:
        def body(tile: Scalar, carry: None) -> None:
            slot = fetch.next(head, tile)
            _attend(kind, tile, slot, facts, fetch, scratch)

        lax.fori_loop(tiles.bounds[KINDS * block + kind], tiles.bounds[KINDS * block + kind + 1], body, None)

    for kind in range(KINDS):
        visit(kind)
    _store_rows(out, facts.live, scratch, shape)

    unsafe = _unsafe_rows(facts.live, scratch, shape)

    @pl.when(jnp.max(unsafe) > 0)
    def _() -> None:
        scratch.anchor[...] = jnp.full_like(scratch.anchor, LOWEST)
        scratch.weighted[...] = jnp.zeros_like(scratch.weighted)

        def body(tile: Scalar, carry: None) -> None:
            slot = fetch.now(head, tile)
            _attend_anew(tile, slot, facts, fetch, scratch)

        lax.fori_loop(tiles.bounds[KINDS * block], tiles.bounds[KINDS * block + KINDS], body, None)
        _store_rows(out, facts.live, scratch, shape, unsafe > 0)


def _load_rows(q: Ref, k: Ref, scratch: Scratch, shape: KernelShape) -> None:
    """Lay the rows out, and anchor each at the logit of its own key, nearly: an anchor need not be exact."""
    tokens, dim = shape.blocks.tokens, shape.head_dim
    own = (k[...] if shape.by_lanes else k[0]).astype(jnp.float32)
    ones = jnp.ones((8, dim), jnp.float32)  # of whose products one row is read: the sum over head_dim, by lanes
    for member in range(shape.group):
        rows = slice(member * tokens, (member + 1) * tokens)
        scratch.rows[rows] = queries = q[:, member * dim : (member + 1) * dim] if shape.by_lanes else q[member]
        logits = lax.dot_general(ones, queries.astype(jnp.float32) * own, (((1,), (1,)), ((), ())))
        scratch.anchor[:, rows] = logits[:1] * shape.scale


def _store_rows(out: Ref, live: Array, scratch: Scratch, shape: KernelShape, chosen: Array | None = None) -> None:
    """Write the weighted means; with `chosen`, `[1, rows]`, only those rows'."""
    tokens, dim = shape.blocks.tokens, shape.head_dim
    for member in range(shape.group):
        rows = slice(member * tokens, (member + 1) * tokens)
        here = (slice(None), slice(member * dim, (member + 1) * dim)) if shape.by_lanes else member
        total = jnp.where(live, scratch.weighted[dim : dim + 1, rows], 1)
        result = jnp.where(live, scratch.weighted[:dim, rows] / total, 0)
        if chosen is not None:
            result = jnp.where(chosen[:, rows], result, out[here].astype(jnp.float32).T)
        out[here] = result.T.astype(out.dtype)


def _unsafe_rows(live: Array, scratch: Scratch, shape: KernelShape) -> Array:
    """Return 1 for each live row whose sum of weights is no number, too large or too small, `[1, rows]` float32."""
    dim, (low, high) = shape.head_dim, SAFE
    total = scratch.weighted[dim : dim + 1]
    live = jnp.concatenate([live] * shape.group, axis=1)
    return jnp.where(live & ~((total > low) & (total < high)), 1.0, 0.0)


def _intervals(tile: Scalar, facts: RowFacts, fetch: Fetch) -> tuple[Array, Array]:
    """Return, for each row, the first visible key of the buffer and how many follow, `[1, rows]`."""
    tiles, group = fetch.tiles, fetch.shape.group
    own, context, first = tiles.context_id[tile] < 0, tiles.context_id[tile], tiles.first[tile]
    start = fetch.own_start(tile)
    # The clamped buffer of a last own tile repeats keys of the tile before: they begin at `first`.
    own_low = jnp.maximum(facts.segment_start, first) - start
    reach = jnp.where(facts.context_id == context, facts.context_len - first, 0)
    low = jnp.where(own, own_low, 0)
    count = jnp.maximum(jnp.where(own, facts.token + 1 - start, reach) - low, 0)
    return jnp.concatenate([low] * group, axis=1), jnp.concatenate([count] * group, axis=1)


def _attend(kind: int, tile: Scalar, slot: Scalar, facts: RowFacts, fetch: Fetch, scratch: Scratch) -> None:
    """Take a tile into the sums of every strip of rows, weighted relative to the rows' anchors."""
    shape, used = fetch.shape, fetch.tiles.used[tile]
    strips, steps = _strips(shape), _steps(shape)
    intervals = _intervals(tile, facts, fetch) if kind == MASKED else None
    keys, values = _keys(kind, scratch.k[slot], used), _values(kind, scratch.v[slot], used)

    def logits(strip: slice) -> list[Array]:
        return [_dot(keys[step], scratch.rows[strip], (1, 1)) * shape.scale for step in steps]

    def weights(strip: slice, parts: list[Array]) -> list[Array]:
        anchor = scratch.anchor[:, strip]
        parts = [_mask(part, step, strip, intervals) for part, step in zip(parts, steps, strict=True)]
        return [jnp.exp2(part - anchor).astype(values.dtype) for part in parts]

    def accumulate(strip: slice, parts: list[Array]) -> None:
        weighted = scratch.weighted[:, strip]
        for part, step in zip(parts, steps, strict=True):
            weighted = weighted + _dot(values[:, step], part, (1, 0))
        scratch.weighted[:, strip] = weighted

    # Written out as a pipeline, since the compiler keeps the order of what it is given: while the
    # vector units work on one strip, the matrix units have the next one's logits and the last one's sum.
    ahead = logits(strips[0])
    behind: list[tuple[slice, list[Array]]] = []
    for index, strip in enumerate(strips):
        parts = ahead
        if index + 1 < len(strips):
            ahead = logits(strips[index + 1])
        for weighted_strip in behind:
            accumulate(*weighted_strip)
        behind = [(strip, weights(strip, parts))]
    accumulate(*behind[0])


def _attend_anew(tile: Scalar, slot: Scalar, facts: RowFacts, fetch: Fetch, scratch: Scratch) -> None:
    """Take a tile of any kind into the online softmax of every strip of rows; the anchor is the maximum so far."""
    shape, used = fetch.shape, fetch.tiles.used[tile]
    steps, intervals = _steps(shape), _intervals(tile, facts, fetch)
    keys, values = _keys(MASKED, scratch.k[slot], used), _values(MASKED, scratch.v[slot], used)
    for strip in _strips(shape):
        logits = [_dot(keys[step], scratch.rows[strip], (1, 1)) * shape.scale for step in steps]
        logits = [_mask(part, step, strip, intervals) for part, step in zip(logits, steps, strict=True)]
        before = highest = scratch.anchor[:, strip]
        for part in logits:
            highest = jnp.maximum(highest, part.max(0, keepdims=True))
        weighted = scratch.weighted[:, strip] * jnp.exp2(before - highest)
        for part, step in zip(logits, steps, strict=True):
            weighted = weighted + _dot(values[:, step], jnp.exp2(part - highest).astype(values.dtype), (1, 0))
        scratch.anchor[:, strip], scratch.weighted[:, strip] = highest, weighted


def _strips(shape: KernelShape) -> list[slice]:
    strip, rows = shape.blocks.strip, shape.rows
    return [slice(begin, min(begin + strip, rows)) for begin in range(0, rows, strip)]


def _steps(shape: KernelShape) -> list[slice]:
    step, keys = shape.blocks.key_step, shape.blocks.keys
    return [slice(begin, begin + step) for begin in range(0, keys, step)]


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
