"""The next token, drawn from full logits: of a few rows at a time, so that these may be held.

The logits are held on the device, where one program draws from them, however many rows the head was multiplied with.
Every row's token is made of its own logits and arguments, with noise of its own key. Rows are gone through in groups of
a fixed size, as many as there are; so what a row gets depends neither on the rows beside it nor on how many there are,
and what nobody asks for costs nothing.

Drawing is the Gumbel-max trick; top-p keeps the smallest set of most probable tokens that has the probability asked for
(nucleus sampling, arXiv 1904.09751), and all that are equal to its last one; top-k likewise the k most probable; min-p
(arXiv 2407.01082) those with a share of the highest probability. They apply in the order top-k, top-p, min-p, behind
the temperature.

Sequences that are generated have slots, whose last tokens stay on the device: a decode step reads them there. For those
whose tokens are penalised, it is counted there how often each was written.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from mis_core.models.decoder import Decoder
from mis_core.requests import MAX_BIASES, MAX_TOP_TOKENS
from mis_core.runner.head import no_tokens
from mis_core.scheduler.plan import SLOTS
from mis_core.scheduler.reading import Draws
from mis_kernels import capped
from mis_kernels.backends.xla.head import head_logits

SAMPLED_ROWS = 64
"""Rows of one call, on each device along `DATA`."""

COUNTED = 256
"""Written tokens of a sequence that is new to its slot that are counted in one call."""

_BEST = 256  # weights that are sorted
_ONE = 0x3F800000  # bits of 1.0: those of floats from 0 to 1 are integers in the same order


class DrawArrays(NamedTuple):
    """How the next token of each row is drawn; see `Sampling`. Biases are filled up with 0 for token 0.

    A row without a slot has `SLOTS`.
    """

    keys: Int32[np.ndarray, "rows words"]
    positions: Int32[np.ndarray, " rows"]
    temperature: Float32[np.ndarray, " rows"]
    top_p: Float32[np.ndarray, " rows"]
    bias_ids: Int32[np.ndarray, "rows biases"]
    bias: Float32[np.ndarray, "rows biases"]
    top_k: Int32[np.ndarray, " rows"]
    min_p: Float32[np.ndarray, " rows"]
    presence: Float32[np.ndarray, " rows"]
    frequency: Float32[np.ndarray, " rows"]
    slots: Int32[np.ndarray, " rows"]
    top_tokens: Int32[np.ndarray, " rows"]

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
            top_k=np.zeros(size, np.int32),
            min_p=np.zeros(size, np.float32),
            presence=np.zeros(size, np.float32),
            frequency=np.zeros(size, np.float32),
            slots=np.full(size, SLOTS, np.int32),
            top_tokens=np.zeros(size, np.int32),
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
            arrays.top_k[here], arrays.min_p[here] = sampling.top_k, sampling.min_p
            arrays.presence[here], arrays.frequency[here] = sampling.presence_penalty, sampling.frequency_penalty
            arrays.top_tokens[here] = each.top_tokens
            if each.slots is not None:
                arrays.slots[here] = each.slots[there]
        return arrays


class DrawnTokens(NamedTuple):
    """What was drawn.

    Attributes:
        ids: Tokens.
        logits: Their logits, before bias, penalties and temperature.
        log_sums: Log of the sum of the exponentials of all logits of each row.
        top_ids: The most probable tokens of the rows that want some, best first, the lowest id among equals; where the
            vocabulary is smaller, ids of -1 fill.
        top_logits: Their logits.
    """

    ids: Int32[Array, " rows"]
    logits: Float32[Array, " rows"]
    log_sums: Float32[Array, " rows"]
    top_ids: Int32[Array, "rows top"]
    top_logits: Float32[Array, "rows top"]


def hold_logits(
    decoder: Decoder, hidden: Array, logits: Float32[Array, "rows vocab"], *, rows: int, is_sharded: bool
) -> Float32[Array, "rows vocab"]:
    """Return `logits` with the first rows replaced by those of `hidden`.

    Args:
        decoder: The model.
        hidden: Final-normed hidden states.
        logits: Is overwritten.
        rows: How many.
        is_sharded: Whether the head is cut over devices, so that the compiler multiplies.
    """
    with jax.named_scope("hold_logits"):
        backend = decoder.backend
        multiply = partial(head_logits, most=backend.vocab_chunk) if is_sharded else backend.logits
        new = capped(multiply(hidden[:rows], decoder.head_weight), decoder.config.logit_cap)
        return lax.dynamic_update_slice_in_dim(logits, new, 0, 0)


def next_tokens(
    logits: Float32[Array, "rows vocab"],
    count: Int32[Array, "1"],
    how: DrawArrays,
    last: Int32[Array, " slots"],
    counts: Int32[Array, "slots vocab"],
    *,
    at_a_time: int,
) -> tuple[DrawnTokens, Int32[Array, " slots"], Int32[Array, "slots vocab"]]:
    """Draw a token from each row of logits.

    Args:
        logits: Rows, of which no more than `count` are read.
        count: How many rows are drawn from, the first ones.
        how: How each is drawn.
        last: The last token of each slot.
        counts: How often each token was written at each slot whose sequence penalises that.
        at_a_time: Rows drawn from at a time; divides the number of rows.

    Returns:
        The tokens, and `last` and `counts` with them.
    """
    with jax.named_scope("next_tokens"):
        rows = len(logits)

        def draw(number: Array, drawn: DrawnTokens) -> DrawnTokens:
            def mine(values: Any) -> Array:
                return lax.dynamic_slice_in_dim(jnp.asarray(values), number * at_a_time, at_a_time)

            new = _draw(mine(logits), jax.tree.map(mine, how), counts)
            both = zip(drawn, new, strict=True)
            return DrawnTokens(*(lax.dynamic_update_slice_in_dim(*each, number * at_a_time, 0) for each in both))

        zeros = jnp.zeros(rows, jnp.int32), jnp.zeros(rows), jnp.zeros(rows)
        empty = DrawnTokens(*zeros, *no_tokens(logits))
        drawn = lax.fori_loop(0, -(-count[0] // at_a_time), draw, empty)
        last = last.at[how.slots].set(drawn.ids, mode="drop")
        counted = jnp.where(_penalises(how), how.slots, SLOTS)
        return drawn, last, counts.at[counted, drawn.ids].add(1, mode="drop")


def count_written(
    counts: Int32[Array, "slots vocab"],
    slot: Int32[Array, " count"],
    tokens: Int32[Array, " tokens"],
    is_first: Int32[Array, " count"],
) -> Int32[Array, "slots vocab"]:
    """Count tokens that were written by the sequence that is new to a slot.

    Args:
        counts: How often each token was written at each slot.
        slot: The slot; `SLOTS`: none.
        tokens: Tokens, filled up with -1.
        is_first: 1 where nothing is counted yet.
    """
    kept = counts.at[slot[0]].get(mode="clip") * (1 - is_first[0])
    kept = kept.at[jnp.where(tokens < 0, len(kept), tokens)].add(1, mode="drop")
    return counts.at[slot[0]].set(kept, mode="drop")


def _draw(logits: Float32[Array, "rows vocab"], how: DrawArrays, counts: Int32[Array, "slots vocab"]) -> DrawnTokens:
    changes = _penalises(how) | (how.bias != 0).any(1)
    changed = lax.cond(changes.any(), _changed, lambda logits, how, counts: logits, logits, how, counts)
    draws = how.temperature > 0
    drawn = lax.cond(draws.any(), _sampled, lambda changed, how: changed, changed, how)
    ids = _first_highest(jnp.where(draws[:, None], drawn, changed))
    highest = logits.max(1, keepdims=True)
    log_sums = (highest + jnp.log(jnp.exp(logits - highest).sum(1, keepdims=True)))[:, 0]
    top = lax.cond((how.top_tokens > 0).any(), _most_probable, no_tokens, logits)
    return DrawnTokens(ids, jnp.take_along_axis(logits, ids[:, None], 1)[:, 0], log_sums, *top)


def _penalises(how: DrawArrays) -> Bool[Array, " rows"]:
    return (jnp.asarray(how.presence) != 0) | (jnp.asarray(how.frequency) != 0)


def _first_highest(values: Float32[Array, "rows vocab"]) -> Int32[Array, " rows"]:
    """Return the index of each row's highest value, the first of equals. `argmax` of XLA:CPU is four times slower."""
    vocab = values.shape[1]
    indices = jnp.where(values == values.max(1, keepdims=True), jnp.arange(vocab, dtype=jnp.int32), vocab - 1)
    return indices.min(1)


def _most_probable(
    logits: Float32[Array, "rows vocab"],
) -> tuple[Int32[Array, "rows top"], Float32[Array, "rows top"]]:
    fill = ((0, 0), (0, max(MAX_TOP_TOKENS - logits.shape[1], 0)))
    top, ids = lax.top_k(logits, min(MAX_TOP_TOKENS, logits.shape[1]))  # takes the first among equals
    return jnp.pad(ids.astype(jnp.int32), fill, constant_values=-1), jnp.pad(top, fill, constant_values=-jnp.inf)


def _changed(
    logits: Float32[Array, "rows vocab"], how: DrawArrays, counts: Int32[Array, "slots vocab"]
) -> Float32[Array, "rows vocab"]:
    """Return logits with biases, and less the penalties."""
    biased = logits.at[jnp.arange(len(logits))[:, None], how.bias_ids].add(how.bias)
    written = counts.at[how.slots].get(mode="fill", fill_value=0).astype(jnp.float32)
    return biased - how.frequency[:, None] * written - how.presence[:, None] * (written > 0)


def _sampled(biased: Float32[Array, "rows vocab"], how: DrawArrays) -> Float32[Array, "rows vocab"]:
    """Return values whose largest is at the token drawn."""
    scaled = biased / jnp.where(how.temperature > 0, how.temperature, 1.0)[:, None]
    weights = jnp.exp(scaled - scaled.max(1, keepdims=True))
    truncates = (how.top_k > 0) | (how.top_p < 1)
    least = lax.cond(truncates.any(), _least_weight, lambda weights, how: jnp.zeros(len(weights)), weights, how)
    least = jnp.maximum(least, how.min_p)  # the highest weight is 1

    def noise(key: Array, position: Array) -> Array:
        words = lax.bitcast_convert_type(key, jnp.uint32)
        mine = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), position)
        return jax.random.gumbel(mine, (biased.shape[1],), jnp.float32)

    noises = jax.vmap(noise)(jnp.asarray(how.keys), jnp.asarray(how.positions))
    return jnp.where(weights >= least[:, None], scaled + noises, -jnp.inf)


def _least_weight(weights: Float32[Array, "rows vocab"], how: DrawArrays) -> Float32[Array, " rows"]:
    """Return the least weight that top-k and top-p keep; 0 where they keep all.

    It is among the highest `_BEST`, mostly; where it is not, it is found in all.
    """
    best, _ = lax.top_k(weights, min(_BEST, weights.shape[1]))
    top_k, top_p = jnp.asarray(how.top_k), jnp.asarray(how.top_p)
    at = jnp.clip(top_k - 1, 0, best.shape[1] - 1)
    least = _where_found(
        top_k <= best.shape[1],
        jnp.take_along_axis(best, at[:, None], 1)[:, 0],
        lambda: _largest(weights, lambda kept: (kept > 0).sum(1) >= top_k),
    )
    least = jnp.where(top_k > 0, least, 0.0)
    wanted = top_p * jnp.where(weights >= least[:, None], weights, 0.0).sum(1)
    reached = jnp.cumsum(jnp.where(best >= least[:, None], best, 0.0), 1) >= wanted[:, None]
    least_of_p = _where_found(
        reached[:, -1] | (top_p >= 1),
        jnp.take_along_axis(best, reached.argmax(1)[:, None], 1)[:, 0],
        lambda: _largest(weights, lambda kept: jnp.where(kept >= least[:, None], kept, 0.0).sum(1) >= wanted),
    )
    return jnp.where(top_p < 1, jnp.maximum(least, least_of_p), least)


def _where_found(
    found: Bool[Array, " rows"], value: Float32[Array, " rows"], search: Callable[[], Array]
) -> Float32[Array, " rows"]:
    """Return a value, or what is searched for the rows that have none."""
    return jnp.where(found, value, lax.cond(found.all(), lambda: value, search))


def _largest(weights: Float32[Array, "rows vocab"], enough: Callable[[Array], Array]) -> Float32[Array, " rows"]:
    """Return the largest weight of each row such that all from it on are enough: found by bisection over its bits."""

    def as_float(bits: Array) -> Array:
        return lax.bitcast_convert_type(bits, jnp.float32)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # enough from `low` on, not from `high` on
        middle = (low + high) // 2
        is_enough = enough(jnp.where(weights >= as_float(middle)[:, None], weights, 0.0))
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle)

    low = jnp.zeros(len(weights), jnp.int32)
    low, _ = lax.fori_loop(0, 31, halve, (low, jnp.full_like(low, _ONE + 1)))
    return as_float(low)
