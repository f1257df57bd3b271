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

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from mis_kernels.activations import logits_of
from mis_kernels.backends.tpu.fetch import Fetch, KernelShape, Ref, Scalar, Scratch, TileRefs
from mis_kernels.backends.tpu.tiles import KINDS, REACH

FULL, LIMITED, MASKED, NEAR = range(KINDS)
TOTAL_ROWS = 16
"""Rows of ones under the values: one register row of bfloat16, of which only one is read."""
LOWEST = -1e30
"""Starting maximum: finite, so that a masked logit of minus infinity always weighs zero."""
SAFE = 2.0**-100, 2.0**100
"""Sums of weights between which no weight has overflown, none that matters is lost, and values up to 2^27 fit."""


class RowFacts(NamedTuple):
    """What each token of the block sees, `[1, block tokens]` int32; without a window it sees contexts from 0."""

    token: Array
    context_id: Array
    context_len: Array
    own_first: Array
    context_first: Array | None = None

    @property
    def live(self) -> Array:
        """Whether the token sees anything; padding does not."""
        return (self.context_len > 0) | (self.own_first <= self.token)


class Piece(NamedTuple):
    """Rows whose logits are worked on together, and the keys of the buffer that they are products with.

    Attributes:
        rows: Of the block: one run, or one of each of some query heads.
        keys: One run for each product.
    """

    rows: list[slice]
    keys: list[slice]

    def rows_of(self, rows: Ref | Array) -> Array:
        """Return the piece's rows, `[rows, head_dim]`."""
        return jnp.concatenate([rows[run] for run in self.rows])

    def lanes_of(self, rows: Ref | Array) -> Array:
        """Return what the piece's rows have, a lane each, `[values, rows]`."""
        return jnp.concatenate([rows[:, run] for run in self.rows], axis=1)

    def store_lanes(self, rows: Ref, values: Array) -> None:
        """Write what the piece's rows have, a lane each."""
        begin = 0
        for run in self.rows:
            end = begin + run.stop - run.start
            rows[:, run] = values[:, begin:end]
            begin = end


def attention_kernel(*refs: Ref, shape: KernelShape) -> None:
    """Attend from one block of one KV head; grid `(kv_heads, blocks)`, sequential."""
    tiles, (facts_ref, q, k), hbm, out = TileRefs(*refs[:6]), refs[6:9], refs[9:13], refs[13]
    scratch = Scratch(*refs[14:])
    fetch = Fetch(tiles, hbm, scratch, shape)
    head, block = pl.program_id(0), pl.program_id(1)
    token = block * shape.blocks.tokens + lax.broadcasted_iota(jnp.int32, (1, shape.blocks.tokens), 1)
    facts = RowFacts(token, *(facts_ref[row : row + 1] for row in range(facts_ref.shape[0])))
    fetch.begin(head, block)
    _load_rows(q, k, scratch, shape)
    scratch.weighted[...] = jnp.zeros_like(scratch.weighted)

    def visit(kind: int) -> None:
        def body(tile: Scalar, carry: None) -> None:
            slot = fetch.next(head, tile)
            _attend(kind, tile, slot, facts, fetch, scratch)

        lax.fori_loop(tiles.bounds[KINDS * block + kind], tiles.bounds[KINDS * block + kind + 1], body, None)

    kinds = range(KINDS if shape.blocks.has_near else NEAR)
    for kind in kinds:
        visit(kind)
    _store_rows(out, facts.live, scratch, shape)

    unsafe = _unsafe_rows(facts.live, scratch, shape)

    @pl.when(jnp.max(unsafe) > 0)
    def _() -> None:
        scratch.anchor[...] = jnp.full_like(scratch.anchor, LOWEST)
        scratch.weighted[...] = jnp.zeros_like(scratch.weighted)

        def visit_anew(kind: int, begin: Scalar, end: Scalar) -> None:
            def body(tile: Scalar, carry: None) -> None:
                slot = fetch.now(head, tile)
                _attend_anew(kind, tile, slot, facts, fetch, scratch)

            lax.fori_loop(begin, end, body, None)

        first, near, last = (tiles.bounds[KINDS * block + kind] for kind in (0, NEAR, KINDS))
        visit_anew(MASKED, first, near)
        if NEAR in kinds:
            visit_anew(NEAR, near, last)
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
        scratch.anchor[:, rows] = logits_of(logits[:1], shape.scale, shape.cap)


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


def _intervals(kind: int, tile: Scalar, facts: RowFacts, fetch: Fetch) -> tuple[Array, Array]:
    """Return, for each row, the first visible key of the buffer and how many follow, `[1, rows]`."""
    tiles, group, part = fetch.tiles, fetch.shape.group, fetch.part(tile)
    own, first = tiles.context_id[part] < 0, tiles.first[part]
    start = first if kind == NEAR else fetch.own_start(tile)
    # The clamped buffer of a last own tile repeats keys of the tile before: they begin at `first`.
    own_low = jnp.maximum(facts.own_first, first) - start
    context_low, context_end = _context_interval(tile, facts, fetch)
    low = jnp.where(own, own_low, context_low)
    count = jnp.maximum(jnp.where(own, facts.token + 1 - start, context_end) - low, 0)
    return jnp.concatenate([low] * group, axis=1), jnp.concatenate([count] * group, axis=1)


def _context_interval(tile: Scalar, facts: RowFacts, fetch: Fetch) -> tuple[Array | int, Array]:
    """Return which keys of a tile of cached tokens each row sees: parts of one context follow one another."""
    blocks, low, end = fetch.shape.blocks, 0, jnp.zeros_like(facts.token)
    for number in range(blocks.parts):
        part = fetch.part(tile, number)
        first = fetch.tiles.first[part]
        reach = facts.context_len - first
        reach = jnp.where(facts.context_id == fetch.tiles.context_id[part], reach, 0)
        skipped = 0 if facts.context_first is None else jnp.maximum(facts.context_first - first, 0)
        if blocks.parts == 1:
            return skipped, reach
        seen = jnp.clip(reach, 0, fetch.tiles.used[part])
        begin = number * blocks.part_keys
        low = jnp.where((seen > skipped) & (end == 0), begin + skipped, low)
        end = jnp.where(seen > skipped, begin + seen, end)
    return low, end


def _attend(kind: int, tile: Scalar, slot: Scalar, facts: RowFacts, fetch: Fetch, scratch: Scratch) -> None:
    """Take a tile into the sums of every piece of rows, weighted relative to the rows' anchors."""
    shape, pieces = fetch.shape, _pieces(kind, fetch.shape)
    keys, values = _operands(kind, tile, slot, fetch, scratch)
    intervals = _intervals(kind, tile, facts, fetch) if kind in (MASKED, NEAR) else None

    def logits(piece: Piece) -> list[Array]:
        rows = piece.rows_of(scratch.rows)
        return [logits_of(_dot(keys[run], rows, (1, 1)), shape.scale, shape.cap) for run in piece.keys]

    def weights(piece: Piece, parts: list[Array]) -> list[Array]:
        anchor = piece.lanes_of(scratch.anchor)
        parts = [_mask(part, run, piece, intervals) for part, run in zip(parts, piece.keys, strict=True)]
        return [jnp.exp2(part - anchor).astype(values.dtype) for part in parts]

    def accumulate(piece: Piece, parts: list[Array]) -> None:
        weighted = piece.lanes_of(scratch.weighted)
        for part, run in zip(parts, piece.keys, strict=True):
            weighted = weighted + _dot(values[:, run], part, (1, 0))
        piece.store_lanes(scratch.weighted, weighted)

    # Written out as a pipeline, since the compiler keeps the order of what it is given: while the
    # vector units work on one piece, the matrix units have the next one's logits and the last one's sum.
    ahead = logits(pieces[0])
    pending: list[tuple[Piece, list[Array]]] = []
    for index, piece in enumerate(pieces):
        parts = ahead
        if index + 1 < len(pieces):
            ahead = logits(pieces[index + 1])
        for weighted_piece in pending:
            accumulate(*weighted_piece)
        pending = [(piece, weights(piece, parts))]
    accumulate(*pending[0])


def _attend_anew(kind: int, tile: Scalar, slot: Scalar, facts: RowFacts, fetch: Fetch, scratch: Scratch) -> None:
    """Take a tile into the online softmax of every piece of rows, with masks; the anchor is the maximum so far."""
    keys, values = _operands(kind, tile, slot, fetch, scratch)
    intervals, shape = _intervals(kind, tile, facts, fetch), fetch.shape
    for piece in _pieces(kind, shape):
        rows = piece.rows_of(scratch.rows)
        logits = [logits_of(_dot(keys[run], rows, (1, 1)), shape.scale, shape.cap) for run in piece.keys]
        logits = [_mask(part, run, piece, intervals) for part, run in zip(logits, piece.keys, strict=True)]
        before = highest = piece.lanes_of(scratch.anchor)
        for part in logits:
            highest = jnp.maximum(highest, part.max(0, keepdims=True))
        weighted = piece.lanes_of(scratch.weighted) * jnp.exp2(before - highest)
        for part, run in zip(logits, piece.keys, strict=True):
            weighted = weighted + _dot(values[:, run], jnp.exp2(part - highest).astype(values.dtype), (1, 0))
        piece.store_lanes(scratch.anchor, highest)
        piece.store_lanes(scratch.weighted, weighted)


def _pieces(kind: int, shape: KernelShape) -> list[Piece]:
    """Cut the block's rows: all against all keys; in near tiles, tokens against those around them."""
    blocks = shape.blocks
    if kind != NEAR:
        steps = [slice(begin, begin + blocks.key_step) for begin in range(0, blocks.keys, blocks.key_step)]
        strips = [slice(begin, min(begin + blocks.strip, shape.rows)) for begin in range(0, shape.rows, blocks.strip)]
        return [Piece([strip], steps) for strip in strips]
    members = max(blocks.strip // REACH, 1)
    return [
        Piece(
            [
                slice(member * blocks.tokens + token, member * blocks.tokens + token + REACH)
                for member in range(first, min(first + members, shape.group))
            ],
            [slice(max(token + blocks.reach - REACH, 0), token + blocks.reach + REACH)],
        )
        for token in range(0, blocks.tokens, REACH)
        for first in range(0, shape.group, members)
    ]


def _operands(kind: int, tile: Scalar, slot: Scalar, fetch: Fetch, scratch: Scratch) -> tuple[Array, Array]:
    """Return the tile's keys by rows, and its values by columns."""
    here: Any = slice(None)
    if kind == NEAR:  # the block's tokens and those it reaches, wherever in the buffer
        begin, blocks = fetch.tiles.first[fetch.part(tile)] - fetch.own_start(tile), fetch.shape.blocks
        here = pl.ds(pl.multiple_of(begin, REACH), blocks.tokens + blocks.reach)
    used = fetch.tiles.used[fetch.part(tile)]
    for number in range(1, fetch.shape.blocks.parts):
        used = used + fetch.tiles.used[fetch.part(tile, number)]
    return _keys(kind, scratch.k[slot, here], used), _values(kind, scratch.v[slot, here], used)


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
        # In a masked tile any row may be another segment's, whose NaN must not leak.
        keep = lax.broadcasted_iota(jnp.int32, (count, 1), 0) < used if kind == LIMITED else jnp.abs(wide) < jnp.inf
        values = jnp.where(keep, wide, 0).astype(values.dtype)
    if kind == LIMITED:
        ones = jnp.where(lax.broadcasted_iota(jnp.int32, ones.shape, 1) < used, ones, 0)
    return jnp.concatenate([values.T, ones.astype(values.dtype)], axis=0)


def _mask(logits: Array, keys: slice, piece: Piece, intervals: tuple[Array, Array] | None) -> Array:
    if intervals is None:
        return logits
    low, count = map(piece.lanes_of, intervals)
    key = lax.broadcasted_iota(jnp.int32, logits.shape, 0)
    # One comparison for both ends: below the interval, the difference wraps to a large number.
    distance = (key - (low - keys.start)).astype(jnp.uint32)
    return jnp.where(distance < count.astype(jnp.uint32), logits, -jnp.inf)
