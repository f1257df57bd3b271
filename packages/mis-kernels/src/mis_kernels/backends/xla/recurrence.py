"""The gated delta rule in chunks of rows, in plain XLA.

Within a chunk the updates of all rows are one unit lower triangular system (DeltaNet, arXiv 2406.06484; with decays:
Gated Delta Networks, arXiv 2412.06464), and everything else is products. A body of the loop computes one chunk, of the
same shape wherever its rows lie, so its bits depend on nothing but its rows, their number and the state before them.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.recurrence import CARRIED, CHUNK, Chunks, RecurrentShape, RecurrentStates
from mis_kernels.storage import from_bits, to_bits

_BLOCK = 16
"""Rows of a diagonal block of the triangular system, which substitution inverts."""

_LEAST_DECAY = -128.0
"""Log of a decay that is zero in float32; sums of such numbers stay finite."""


def gated_delta(
    inputs: Array,
    decay: Array,
    rate: Array,
    kernel: Array,
    states: RecurrentStates,
    chunks: Chunks,
    *,
    shape: RecurrentShape,
) -> tuple[Array, RecurrentStates]:
    """Compute chunk after chunk. Arguments and result as in `mis_kernels.gated_delta`."""
    tokens = len(inputs)
    lacking = max(CHUNK - tokens, 0)
    inputs, decay, rate = (jnp.pad(x, ((0, lacking), (0, 0))) for x in (to_bits(inputs), decay, rate))
    rows, lens, reads, writes, count = map(jnp.asarray, chunks)

    def compute(number: Array, carry: tuple[Array, RecurrentStates, RecurrentStates]) -> tuple:
        out, states, left = carry
        window = _Window(rows[number], lens[number], len(inputs))
        start = jax.tree.map(lambda stored, left: _start(stored, left, reads[number]), states, left)
        mixed, last = _convolve(from_bits(window.read(inputs)), start.inputs, kernel, lens[number])
        found, memory = _delta_rule(mixed, window.read(decay), window.read(rate), start.memory, shape)
        left = RecurrentStates(memory, last)
        states = jax.tree.map(lambda stored, new: _stored(stored, new, writes[number]), states, left)
        return window.write(out, found), states, left

    nothing = jnp.zeros((len(inputs), shape.value_heads, shape.value_dim), jnp.float32)
    left = jax.tree.map(lambda stored: jnp.zeros(stored.shape[1:], stored.dtype), states)
    out, states, _ = lax.fori_loop(0, count, compute, (nothing, states, left))
    return out[:tokens], states


class _Window:
    """The rows of a chunk in an array of `tokens` rows.

    A slice that would reach past the array's end begins earlier, since XLA moves it there anyway; its rows are then
    shifted, so that the chunk's first is always the first.
    """

    def __init__(self, first: Array, length: Array, tokens: int) -> None:
        self.begin = jnp.minimum(first, tokens - CHUNK)
        self.shift = first - self.begin
        self.length = length

    def read(self, x: Array) -> Array:
        """Return the chunk's rows, and zeros after them, `[CHUNK, ...]`."""
        piece = lax.dynamic_slice_in_dim(x, self.begin, CHUNK)
        rows = lax.dynamic_slice_in_dim(jnp.concatenate([piece, piece]), self.shift, CHUNK)
        return jnp.where((jnp.arange(CHUNK) < self.length)[:, None], rows, jnp.zeros((), x.dtype))

    def write(self, x: Array, rows: Array) -> Array:
        """Return the array with the chunk's rows in place, and no others."""
        piece = lax.dynamic_slice_in_dim(x, self.begin, CHUNK)
        shifted = lax.dynamic_slice_in_dim(jnp.concatenate([rows, rows]), CHUNK - self.shift, CHUNK)
        row = jnp.arange(CHUNK)[:, None, None]
        is_own = (row >= self.shift) & (row < self.shift + self.length)
        return lax.dynamic_update_slice_in_dim(x, jnp.where(is_own, shifted, piece), self.begin, 0)


def _start(stored: Array, left: Array, read: Array) -> Array:
    """Return what a chunk starts from: a slot's, what the chunk before it left, or zeros."""
    slot = lax.dynamic_index_in_dim(stored, jnp.maximum(read, 0), keepdims=False)
    return jnp.where(read >= 0, slot, jnp.where(read == CARRIED, left, 0))


def _stored(stored: Array, new: Array, write: Array) -> Array:
    """Return the slots with one of them replaced; all as they are where `write` is past the last."""
    slot = jnp.minimum(write, len(stored) - 1)
    old = lax.dynamic_index_in_dim(stored, slot, keepdims=False)
    return lax.dynamic_update_index_in_dim(stored, jnp.where(write < len(stored), new, old), slot, 0)


def _convolve(rows: Array, last: Array, kernel: Array, length: Array) -> tuple[Array, Array]:
    """Convolve causally and apply SiLU.

    Args:
        rows: Inputs, `[CHUNK, channels]`.
        last: Inputs before them, `[taps - 1, channels]` float32.
        kernel: `[channels, taps]`.
        length: How many rows there are.

    Returns:
        `[CHUNK, channels]`, and the last inputs up to the last row, as `last`.
    """
    taps = kernel.shape[1]
    window = jnp.concatenate([last, rows.astype(jnp.float32)])
    mixed = sum(window[tap : tap + CHUNK] * kernel[:, tap] for tap in range(taps))
    return jax.nn.silu(mixed), lax.dynamic_slice_in_dim(window, length, taps - 1)


def _delta_rule(mixed: Array, decay: Array, rate: Array, memory: Array, shape: RecurrentShape) -> tuple[Array, Array]:
    """Apply the rule to one chunk.

    Args:
        mixed: Queries, keys and values side by side, `[CHUNK, channels]`.
        decay: Logs of decays, `[CHUNK, value_heads]`; zero past the last row.
        rate: How much of each row is learnt, likewise.
        memory: State before it, `[value_heads, key_dim, value_dim]`.
        shape: Of the layer.

    Returns:
        `[CHUNK, value_heads, value_dim]`, and the state after it.
    """
    q, k, v = _heads(mixed, shape)
    decay, rate = jnp.maximum(decay.T, _LEAST_DECAY), rate.T[:, :, None]  # [heads, rows], [heads, rows, 1]
    row = jnp.arange(CHUNK)
    # Sums from one row to another are added up from the terms between them: as differences of sums from the chunk's
    # begin they would lose what follows a strong decay.
    terms = jnp.where(row[:, None] > row, decay[:, :, None], 0)  # [heads, terms, rows]
    seen = row[:, None] >= row
    between = jnp.einsum("it,htj->hij", seen.astype(jnp.float32), terms, precision=lax.Precision.HIGHEST)
    fade = jnp.where(seen, jnp.exp(between), 0)  # from row j to row i
    fade_from_start = jnp.exp(decay[:, :1, None] + between[:, :, :1])

    both = _product("hik,hjk->hij", jnp.concatenate([q, k], 1), k)
    both_of_memory = _product("hik,hkv->hiv", jnp.concatenate([q, k], 1), memory)
    weights, overlaps = both[:, :CHUNK] * fade, both[:, CHUNK:] * fade * rate
    from_memory, known = both_of_memory[:, :CHUNK], both_of_memory[:, CHUNK:]
    learnt = _solve(jnp.where(row[:, None] > row, overlaps, 0), rate * (v - fade_from_start * known))
    found = fade_from_start * from_memory + _product("hij,hjv->hiv", weights, learnt)
    fade_to_end = fade[:, -1, :, None]
    memory = memory * fade_from_start[:, -1:] + _product("hjk,hjv->hkv", k * fade_to_end, learnt)
    return found.swapaxes(0, 1), memory


def _heads(mixed: Array, shape: RecurrentShape) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of every value head, `[value_heads, CHUNK, key_dim or value_dim]`."""
    keys = shape.key_heads * shape.key_dim
    q, k, v = jnp.split(mixed, (keys, 2 * keys), axis=1)
    q, k = (x.reshape(CHUNK, shape.key_heads, -1) for x in (q, k))
    q, k = (x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (jnp.repeat(x.swapaxes(0, 1), shape.value_heads // shape.key_heads, axis=0) for x in (q, k))
    return q * shape.key_dim**-0.5, k, v.reshape(CHUNK, shape.value_heads, -1).swapaxes(0, 1)


def _solve(lower: Array, right: Array) -> Array:
    """Solve `(1 + lower) x = right`, `[heads, CHUNK, CHUNK]` strictly lower and `[heads, CHUNK, value_dim]`.

    Powers of `lower`, which would need fewer operations one after the other, grow far beyond float32 where keys repeat.
    """
    blocks = range(0, CHUNK, _BLOCK)
    diagonal = jnp.stack([lower[:, i : i + _BLOCK, i : i + _BLOCK] for i in blocks], 1)
    inverse = _inverse(diagonal)
    solved: list[Array] = []
    for number, first in enumerate(blocks):
        rest = right[:, first : first + _BLOCK]
        if solved:
            before = jnp.concatenate(solved, 1)
            rest = rest - _product("hij,hjv->hiv", lower[:, first : first + _BLOCK, :first], before)
        solved.append(_product("hij,hjv->hiv", inverse[:, number], rest))
    return jnp.concatenate(solved, 1)


def _inverse(lower: Array) -> Array:
    """Invert `1 + lower`, `[..., n, n]` strictly lower, row by row."""
    size = lower.shape[-1]
    unit = jnp.eye(size, dtype=lower.dtype)
    inverse = jnp.broadcast_to(unit[:1], (*lower.shape[:-2], 1, size))
    for row in range(1, size):
        known = (lower[..., row, :row, None] * inverse).sum(-2)
        inverse = jnp.concatenate([inverse, (unit[row] - known)[..., None, :]], -2)
    return inverse


def _product(axes: str, a: Array, b: Array) -> Array:
    return jnp.einsum(axes, a, b, precision=lax.Precision.HIGHEST)
