"""The head, at scored positions only: label logits and, where asked for, normalisers and the most probable tokens.

`[rows, vocab]` is held on CPUs for few rows alone. A label's logit is one row of the output projection; a softmax over
labels needs nothing else. Normalisers stream over the vocabulary with a running maximum (the online
softmax's, arXiv 1805.02867), and so do the most probable tokens, with the best so far. `sampling` draws next tokens.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

from mis_core.models.blocks import rows_of
from mis_core.models.decoder import Decoder
from mis_core.requests import MAX_TOP_TOKENS
from mis_kernels import capped, from_bits, row_sum
from mis_kernels.backends.xla.head import chunk_logits

Kept = TypeVar("Kept")

_BLOCK = 64  # logits of which the most probable tokens are searched by their maximum first


def label_logits(
    decoder: Decoder, hidden: Array, pair_row: Int32[Array, " pairs"], pair_label: Int32[Array, " pairs"]
) -> Float32[Array, " pairs"]:
    """Return the logit of each (row of `hidden`, label) pair.

    Each is one dot product of fixed length, so its bits depend on nothing but the pair. Labels behind the last row of
    the head are rows of the decision head.
    """
    with jax.named_scope("label_logits"):
        head, decision = decoder.head_weight, decoder.config.decision
        own = pair_label if decision is None else jnp.minimum(pair_label, len(head) - 1)
        weights = from_bits(head[own]).astype(jnp.float32)
        rows = hidden[pair_row].astype(jnp.float32)
        logits = (rows * weights).sum(-1)
        if decoder.config.family.of_tokens:
            logits = logits + from_bits(decoder.head_bias[...][own]).astype(jnp.float32)
        logits = capped(logits, decoder.config.logit_cap)
        if decision is None:
            return logits
        row = jnp.maximum(pair_label - len(head), 0)
        values = (rows * decoder.decision_head[...][row]).sum(-1)
        if decision.has_bias:
            values = values + decoder.decision_bias[...][row]
        return jnp.where(pair_label < len(head), logits, capped(values, decision.softcap))


def log_sum_exp(
    decoder: Decoder, hidden: Array, rows: Int32[Array, " rows"], *, is_sharded: bool
) -> Float32[Array, " rows"]:
    """Return the log of the sum of the exponentials of all logits of some rows of `hidden`; rows of -1 fill.

    Where a head is cut, each device has parts of every logit.
    """
    with jax.named_scope("log_sum_exp"):
        hidden = rows_of(hidden, rows)
        head, cap = from_bits(decoder.head_weight), decoder.config.logit_cap
        fused = None if is_sharded else decoder.backend.log_sum_exp(hidden, head, cap)
        if fused is not None:
            return fused
        return _stream(decoder, hidden, lambda kept, start, logits: kept, ())[1]


def most_probable(
    decoder: Decoder, hidden: Array
) -> tuple[Int32[Array, "rows top"], Float32[Array, "rows top"], Float32[Array, " rows"]]:
    """Return the `MAX_TOP_TOKENS` most probable tokens after each row and their logits, best first, and `log_sum_exp`.

    Among equals the lower id comes first. Where the vocabulary is smaller, ids of -1 fill.
    """

    def keep(best: tuple[Array, Array], start: Array, logits: Array) -> tuple[Array, Array]:
        ids, logits = _candidates(logits)
        ids = jnp.concatenate([best[0], start + ids], 1)
        highest, at = lax.top_k(jnp.concatenate([best[1], logits], 1), MAX_TOP_TOKENS)  # takes the first among equals
        return jnp.take_along_axis(ids, at, 1), highest

    with jax.named_scope("most_probable"):
        (ids, logits), sums = _stream(decoder, hidden, keep, no_tokens(hidden))
        return ids, logits, sums


def no_tokens(rows: Array) -> tuple[Int32[Array, "rows top"], Float32[Array, "rows top"]]:
    """Return what fills the most probable tokens of so many rows: ids of -1, logits of minus infinity."""
    shape = len(rows), MAX_TOP_TOKENS
    return jnp.full(shape, -1, jnp.int32), jnp.full(shape, -jnp.inf, jnp.float32)


def _stream(
    decoder: Decoder, hidden: Array, keep: Callable[[Kept, Array, Array], Kept], kept: Kept
) -> tuple[Kept, Float32[Array, " rows"]]:
    """Go through the vocabulary once; return what is kept of it, and the log-sum-exp of each row.

    `keep` takes what is kept so far, the first token of a chunk, and its logits; those of tokens that an earlier chunk
    had are minus infinity. A head with one row is a logistic classifier's, whose other class has the logit 0: it
    counts, so that the probability is the sigmoid of the logit.
    """
    weight = decoder.head_weight
    vocab = len(weight)
    chunk = min(decoder.backend.vocab_chunk, vocab)

    def add(carry: tuple[Kept, Array, Array], index: Array) -> tuple[tuple[Kept, Array, Array], None]:
        kept, highest, total = carry
        start, logits = chunk_logits(hidden, weight, chunk, index)
        logits = capped(logits, decoder.config.logit_cap)
        logits = jnp.where(start + jnp.arange(chunk) >= index * chunk, logits, -jnp.inf)
        new = jnp.maximum(highest, logits.max(1))
        total = total * jnp.exp(highest - new) + row_sum(jnp.exp(logits - new[:, None]))[:, 0]
        return (keep(kept, start, logits), new, total), None

    start = (0.0, 1.0) if vocab == 1 else (-jnp.inf, 0.0)
    highest, total = (jnp.full(len(hidden), each, jnp.float32) for each in start)
    (kept, highest, total), _ = lax.scan(add, (kept, highest, total), jnp.arange(-(-vocab // chunk)))
    return kept, highest + jnp.log(total)


def _candidates(
    logits: Float32[Array, "rows vocab"],
) -> tuple[Int32[Array, "rows values"], Float32[Array, "rows values"]]:
    """Return indices, rising, and values among which the highest `MAX_TOP_TOKENS` are, the first of equal ones.

    They lie in the blocks whose maxima are the highest: each of these has one that comes before all of any other
    block. Sorting a chunk whole costs a CPU more than multiplying it.
    """
    rows, chunk = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, -chunk % _BLOCK)), constant_values=-jnp.inf)
    blocks = padded.reshape(rows, -1, _BLOCK)
    _, chosen = lax.top_k(blocks.max(2), min(MAX_TOP_TOKENS, blocks.shape[1]))
    chosen = jnp.sort(chosen, 1)[:, :, None]
    indices = chosen.astype(jnp.int32) * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
    return indices.reshape(rows, -1), jnp.take_along_axis(blocks, chosen, 1).reshape(rows, -1)
