"""The log of the sum of the exponentials of a row's logits over the whole vocabulary, in one pass over the head.

XLA writes a piece of the logits to memory and reads it for the maximum and again for the sum. The kernel keeps a piece
in registers and a running maximum and sum of each row (arXiv 1805.02867); logits are held transposed, vocabulary by
rows, so that both are taken without crossing lanes. The vocabulary's weights are read once.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Float32

from mis_kernels.activations import capped
from mis_kernels.backends.tpu.fetch import LANES, Ref
from mis_kernels.target import target

PIECE = 256
"""Logits of a row that are worked on together."""
_BLOCK_BYTES = 4 * 2**20
_VMEM_LIMIT = 64 * 2**20
_LOWEST = -1e30  # finite, so that the first maximum fades to zero and not to NaN


def fits(rows: int, vocab: int, embed: int) -> bool:
    """Whether the kernel takes so many rows and logits, and rows so wide: they fill lanes, and a piece is not all."""
    return rows % LANES == 0 and vocab >= PIECE and embed % LANES == 0


def block_tokens(embed: int, itemsize: int) -> int:
    """Return how many tokens of the vocabulary a grid step reads."""
    return max(_BLOCK_BYTES // (embed * itemsize) // PIECE, 1) * PIECE


def tpu_log_sum_exp(
    hidden: Float[Array, "rows embed"], weight: Float[Array, "vocab embed"], cap: float | None = None
) -> Float32[Array, " rows"]:
    """Return the log of the sum of the exponentials of each row's logits, capped if there is a cap.

    A row's bits depend on the row alone.

    Raises:
        ValueError: rows or vocabulary do not fit the kernel, see `fits`.
    """
    (rows, embed), vocab = hidden.shape, len(weight)
    if not fits(rows, vocab, embed):
        raise ValueError(
            f"hidden, weight: {rows} rows of {embed} and {vocab} tokens; rows and width must be multiples of {LANES}, "
            f"tokens at least {PIECE}"
        )
    block = block_tokens(embed, weight.dtype.itemsize)
    out = pl.pallas_call(
        partial(log_sum_exp_kernel, vocab=vocab, cap=cap),
        grid=(-(-vocab // block),),
        in_specs=[
            pl.BlockSpec((rows, embed), lambda _: (0, 0)),
            pl.BlockSpec((block, embed), lambda index: (index, 0)),
        ],
        out_specs=pl.BlockSpec((1, rows), lambda _: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, rows), jnp.float32),
        scratch_shapes=[pltpu.VMEM((1, rows), jnp.float32)] * 2,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=_VMEM_LIMIT),
        interpret=target().interpret,
        name="log_sum_exp",
    )(hidden, weight)
    return out[0]


def log_sum_exp_kernel(
    hidden: Ref, weight: Ref, out: Ref, highest: Ref, total: Ref, *, vocab: int, cap: float | None
) -> None:
    """Take one block of the vocabulary into the running maxima and sums of all rows."""
    index, last, block = pl.program_id(0), pl.num_programs(0) - 1, weight.shape[0]

    @pl.when(index == 0)
    def _() -> None:
        highest[...] = jnp.full_like(highest, _LOWEST)
        total[...] = jnp.zeros_like(total)

    def add(is_last: bool) -> None:
        rows = hidden[...]
        precision = lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None
        for begin in range(0, block, PIECE):
            piece = weight[begin : begin + PIECE]
            logits = lax.dot_general(
                piece, rows, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
            )
            logits = capped(logits, cap)
            if is_last:
                token = index * block + begin + lax.broadcasted_iota(jnp.int32, logits.shape, 0)
                logits = jnp.where(token < vocab, logits, -jnp.inf)
            before = highest[...]
            after = jnp.maximum(before, logits.max(0, keepdims=True))
            sums = jnp.exp(logits - after).sum(0, keepdims=True)
            highest[...], total[...] = after, total[...] * jnp.exp(before - after) + sums

    pl.when(index < last)(lambda: add(is_last=False))

    @pl.when(index == last)
    def _() -> None:
        add(is_last=True)
        out[...] = highest[...] + jnp.log(total[...])
