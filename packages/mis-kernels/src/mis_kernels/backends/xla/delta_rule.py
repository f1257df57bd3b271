"""The gated delta rule for one chunk of rows, with the convolution before it, in float32.

The updates of all rows are one unit lower triangular system (DeltaNet, arXiv 2406.06484; with decays: Gated Delta
Networks, arXiv 2412.06464), and everything else is products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.recurrence import RecurrentShape

_BLOCK = 16
"""Rows of a diagonal block of the triangular system, which substitution inverts."""

_LEAST_DECAY = -128.0
"""Log of a decay that is zero in float32; sums of such numbers stay finite."""


class Learnt(NamedTuple):
    """What a chunk changes about memory.

    Attributes:
        keys: Of each row, as far as they fade up to the chunk's end, `[value_heads, rows, key_dim]`.
        values: What is new of each row, `[value_heads, rows, value_dim]`.
        fade: Factor of the memory before the chunk, `[value_heads, 1, 1]`.
    """

    keys: Array
    values: Array
    fade: Array


def read_and_solve(
    joined: Array, decay: Array, rate: Array, kernel: Array, memory: Array, shape: RecurrentShape
) -> tuple[Array, Learnt]:
    """Return what each row reads, and what the chunk learns: `forget_and_learn` makes the state after it of that.

    Args:
        joined: Inputs of the convolution, first those before the chunk, `[taps - 1 + rows, channels]` float32.
        decay: Logs of decays, `[rows, value_heads]`; zero past the last row.
        rate: How much of each row is learnt, likewise.
        kernel: Factors of the convolution, `[taps, channels]`.
        memory: State before the chunk, `[value_heads, key_dim, value_dim]`.
        shape: Of the layer.

    Returns:
        `[rows, value_heads, value_dim]`, and what is learnt.
    """
    rows = len(decay)
    both, v = queries_keys_values(joined, kernel, rows, shape)
    overlaps = _product("hik,hjk->hij", both, both[:, rows:])
    both, overlaps = (jnp.repeat(x, shape.value_heads // shape.key_heads, axis=0) for x in (both, overlaps))
    of_memory = _product("hik,hkv->hiv", both, memory)
    fade_from_start, fade = _fades(decay)

    known, rate = fade_from_start * of_memory[:, rows:], rate.T[:, :, None]
    system = jnp.tril(overlaps[:, rows:] * fade * rate, -1)
    with jax.named_scope("substitution"):
        values = _solve(system, rate * (v - known))
    found = fade_from_start * of_memory[:, :rows] + _product("hij,hjv->hiv", overlaps[:, :rows] * fade, values)
    keys = both[:, rows:] * fade[:, -1, :, None]
    return found.swapaxes(0, 1), Learnt(keys, values, fade_from_start[:, -1:])


def forget_and_learn(memory: Array, learnt: Learnt) -> Array:
    """Return the state after a chunk."""
    return memory * learnt.fade + _product("hjk,hjv->hkv", learnt.keys, learnt.values)


def queries_keys_values(joined: Array, kernel: Array, rows: int, shape: RecurrentShape) -> tuple[Array, Array]:
    """Convolve, apply SiLU, normalise: queries and keys `[key_heads, 2 * rows, key_dim]`, values per value head."""

    def mixed(channels: slice, *parts: int) -> Array:
        window, factors = joined[:, channels].reshape(-1, *parts), kernel[:, channels].reshape(-1, *parts)
        return jax.nn.silu(sum(window[tap : tap + rows] * factor for tap, factor in enumerate(factors)))

    keys = 2 * shape.key_heads * shape.key_dim
    both = mixed(slice(keys), 2, shape.key_heads, shape.key_dim).transpose(2, 1, 0, 3)
    scale = jnp.asarray([shape.key_dim**-0.5, 1], jnp.float32)[:, None, None]
    both = both * (lax.rsqrt((both * both).sum(-1, keepdims=True) + 1e-6) * scale)
    v = mixed(slice(keys, None), shape.value_heads, shape.value_dim).swapaxes(0, 1)
    return both.reshape(shape.key_heads, 2 * rows, shape.key_dim), v


def _fades(decay: Array) -> tuple[Array, Array]:
    """Return the factors by which memory fades from the chunk's begin to each row, and from one row to another.

    Logarithms are added up from one row to another. As differences of sums from the chunk's begin they would lose
    digits after a strong decay.

    Returns:
        `[value_heads, rows, 1]`; `[value_heads, rows, rows]`, to the first of two rows from the second, or zero.
    """
    logs = jnp.maximum(decay.T, _LEAST_DECAY)
    seen = jnp.tril(jnp.ones((len(decay), len(decay)), jnp.float32))
    terms = jnp.tril(jnp.broadcast_to(logs[:, :, None], (len(logs), *seen.shape)), -1)
    between = _product("hit,htj->hij", jnp.broadcast_to(seen, terms.shape), terms)
    return jnp.exp(logs[:, :1, None] + between[:, :, :1]), jnp.exp(between) * seen


def _solve(lower: Array, right: Array) -> Array:
    """Solve `(1 + lower) x = right`, `[heads, rows, rows]` strictly lower and `[heads, rows, value_dim]`.

    Powers of `lower`, which would need fewer operations one after another, grow far beyond float32 where keys repeat.
    """
    blocks = range(0, lower.shape[1], _BLOCK)
    inverse = _inverse(jnp.stack([lower[:, i : i + _BLOCK, i : i + _BLOCK] for i in blocks], 1))
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
    unit = jnp.broadcast_to(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower.shape)

    def row(number: Array, inverse: Array) -> Array:
        factors = lax.dynamic_index_in_dim(lower, number, -2, keepdims=False)
        known = (factors[..., None] * inverse).sum(-2)  # rows from this one on still are the unit's, their factors zero
        wanted = lax.dynamic_index_in_dim(unit, number, -2, keepdims=False) - known
        return lax.dynamic_update_index_in_dim(inverse, wanted, number, -2)

    return lax.fori_loop(1, lower.shape[-1], row, unit)


def _product(axes: str, a: Array, b: Array) -> Array:
    return jnp.einsum(axes, a, b, precision=lax.Precision.HIGHEST)
