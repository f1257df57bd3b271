"""The next token, drawn from full logits: of a few rows at a time, so that these may be held.

Every row's token is made of its own logits and arguments, with noise of its own key; so it does not depend on the
rows beside it. Drawing is the Gumbel-max trick; top-p keeps the smallest set of most probable tokens that has
the probability asked for (nucleus sampling, arXiv 1904.09751), and all that are equal to its last one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int32

from mis_core.models.decoder import Decoder
from mis_core.scheduler.reading import Draws
from mis_core.scoring.request import MAX_BIASES
from mis_kernels import from_bits, row_sum

SAMPLED_ROWS = 64
"""Rows of one call, on each device along `DATA`; fewer take another path in products on XLA:CPU."""

_ONE = 0x3F800000  # bits of 1.0: those of floats from 0 to 1 are integers in the same order


class DrawArrays(NamedTuple):
    """How the next token of each row is drawn; see `Sampling`. Biases are filled up with 0 for token 0."""

    keys: Int32[np.ndarray, "rows words"]
    positions: Int32[np.ndarray, " rows"]
    temperature: Float32[np.ndarray, " rows"]
    top_p: Float32[np.ndarray, " rows"]
    bias_ids: Int32[np.ndarray, "rows biases"]
    bias: Float32[np.ndarray, "rows biases"]

    @classmethod
    def of(cls, draws: list[Draws], begin: int, size: int) -> "DrawArrays":
        """Return `size` rows from `begin` on of all draws of a step, filled up with greedy ones."""
        ends = np.cumsum([len(each.rows) for each in draws])
        arrays = cls(
            keys=np.zeros((size, 2), np.int32),
            positions=np.zeros(size, np.int32),
            temperature=np.zeros(size, np.float32),
            top_p=np.ones(size, np.float32),
            bias_ids=np.zeros((size, MAX_BIASES), np.int32),
            bias=np.zeros((size, MAX_BIASES), np.float32),
        )
        for each, end in zip(draws, ends, strict=True):
            start = end - len(each.rows)
            first, last = max(start, begin), min(end, begin + size)
            if first >= last:
                continue
            here, there = slice(first - begin, last - begin), slice(first - start, last - start)
            sampling, biases = each.sampling, len(each.sampling.bias_ids)
            arrays.keys[here], arrays.positions[here] = each.keys[there], each.positions[there]
            arrays.temperature[here], arrays.top_p[here] = sampling.temperature, sampling.top_p
            arrays.bias_ids[here, :biases], arrays.bias[here, :biases] = sampling.bias_ids, sampling.bias
        return arrays


def next_tokens(
    decoder: Decoder, hidden: Array, how: DrawArrays
) -> tuple[Int32[Array, " rows"], Float32[Array, " rows"]]:
    """Draw the token after each row of `hidden`; return the tokens and their logits, before bias and temperature."""
    with jax.named_scope("next_tokens"):
        logits = _logits(decoder, hidden)
        rows = jnp.arange(len(logits))
        biased = logits.at[rows[:, None], how.bias_ids].add(how.bias)
        drawn = lax.cond((how.temperature > 0).any(), _sampled, lambda biased, how: biased, biased, how)
        ids = jnp.argmax(jnp.where(how.temperature[:, None] > 0, drawn, biased), 1).astype(jnp.int32)
        return ids, logits[rows, ids]


def _logits(decoder: Decoder, hidden: Array) -> Float32[Array, "rows vocab"]:
    weight = decoder.head_weight
    vocab = weight.shape[0]
    chunk = min(decoder.backend.vocab_chunk, vocab)

    def fill(index: Array, logits: Array) -> Array:
        start = jnp.minimum(index * chunk, vocab - chunk)  # the last chunk reaches back and writes the same again
        part = from_bits(lax.dynamic_slice_in_dim(weight, start, chunk))
        new = lax.dot_general(hidden, part, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice_in_dim(logits, new, start, 1)

    return lax.fori_loop(0, -(-vocab // chunk), fill, jnp.zeros((len(hidden), vocab), jnp.float32))


def _sampled(biased: Float32[Array, "rows vocab"], how: DrawArrays) -> Float32[Array, "rows vocab"]:
    """Return values whose largest is at the token drawn."""
    scaled = biased / jnp.where(how.temperature > 0, how.temperature, 1.0)[:, None]
    weights = jnp.exp(scaled - scaled.max(1, keepdims=True))
    least = lax.cond((how.top_p < 1).any(), _least_weight, lambda weights, top_p: 0.0 * top_p, weights, how.top_p)

    def noise(key: Array, position: Array) -> Array:
        words = lax.bitcast_convert_type(key, jnp.uint32)
        mine = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), position)
        return jax.random.gumbel(mine, (biased.shape[1],), jnp.float32)

    noises = jax.vmap(noise)(jnp.asarray(how.keys), jnp.asarray(how.positions))
    return jnp.where(weights >= least[:, None], scaled + noises, -jnp.inf)


def _least_weight(weights: Float32[Array, "rows vocab"], top_p: Float32[Array, " rows"]) -> Float32[Array, " rows"]:
    """Return the largest weight such that all from it on have the share `top_p`: found by bisection over its bits."""
    wanted = top_p * row_sum(weights)[:, 0]

    def as_float(bits: Array) -> Array:
        return lax.bitcast_convert_type(bits, jnp.float32)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # enough from `low` on, not from `high` on
        middle = (low + high) // 2
        kept = jnp.where(weights >= as_float(middle)[:, None], weights, 0.0)
        enough = row_sum(kept)[:, 0] >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low = jnp.zeros(len(top_p), jnp.int32)
    low, _ = lax.fori_loop(0, 31, halve, (low, jnp.full_like(low, _ONE + 1)))
    return jnp.where(top_p < 1, as_float(low), 0.0)
