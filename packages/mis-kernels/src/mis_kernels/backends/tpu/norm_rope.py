"""Norms of queries and keys, RoPE and the split into q, k and v in one pass over the projection.

Plain XLA makes several passes with transposes between them. The kernel reads a block of tokens of one
KV head's columns and writes them where attention reads them: heads side by side, in the order of heads.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from mis_kernels.backends.tpu.fetch import LANES, Ref
from mis_kernels.heads import HeadShape
from mis_kernels.target import target

_BLOCK_TOKENS = 1024
_MAX_BYTES = 15 * 2**20  # v5e has 16 MiB for a kernel
_TABLE_BYTES = 4  # of float32


def tpu_norm_rope(
    qkv: Array, cos: Array, sin: Array, q_norm: Array | None, k_norm: Array | None, epsilon: float
) -> tuple[Array, Array, Array]:
    """Arguments and results as in `mis_kernels.norm_rope`."""
    tokens, kv_heads, parts, dim = qkv.shape
    group = parts - 2
    block, together = grid_block(tokens, HeadShape(kv_heads * group, kv_heads, dim), qkv.dtype.itemsize)

    def columns(heads: int) -> pl.BlockSpec:
        return pl.BlockSpec((block, together * heads * dim), lambda row, head: (row, head))

    table = pl.BlockSpec((block, dim), lambda row, head: (row, 0))
    weight = pl.BlockSpec((2, dim), lambda row, head: (0, 0))
    normed = q_norm is not None and k_norm is not None
    weights = jnp.stack([q_norm, k_norm]).astype(jnp.float32) if normed else jnp.ones((2, dim), jnp.float32)
    q, k, v = pl.pallas_call(
        partial(norm_rope_kernel, heads=together, group=group, dim=dim, epsilon=epsilon if normed else None),
        grid=(tokens // block, kv_heads // together),
        in_specs=[columns(parts), table, table, weight],
        out_specs=[columns(group), columns(1), columns(1)],
        out_shape=[jax.ShapeDtypeStruct((tokens, kv_heads * n * dim), qkv.dtype) for n in (group, 1, 1)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=target().interpret,
        name="norm_rope",
    )(qkv.reshape(tokens, -1), cos, sin, weights)
    return tuple(x.reshape(tokens, -1, dim) for x in (q, k, v))


def grid_block(tokens: int, heads: HeadShape, item_bytes: int) -> tuple[int, int]:
    """Return the tokens and the KV heads of a grid step, whose blocks are in memory twice: one comes, one is computed.

    A block's columns fill whole lanes, or are all there are.
    """
    together = 1 if heads.head_dim % LANES == 0 else heads.kv_heads
    columns = together * (heads.group + 2) * heads.head_dim
    token_bytes = 2 * (2 * columns * item_bytes + 2 * max(heads.head_dim, LANES) * _TABLE_BYTES)
    block = _BLOCK_TOKENS
    while tokens % block or block * token_bytes > _MAX_BYTES:
        block //= 2
    return block, together


def swapped(x: Array) -> Array:
    """Return heads whose halves have changed places, inside a kernel."""
    half = x.shape[1] // 2
    return pltpu.roll(x, half, 1) if x.shape[1] == LANES else jnp.concatenate([x[:, half:], x[:, :half]], axis=1)


def norm_rope_kernel(
    qkv_ref: Ref,
    cos_ref: Ref,
    sin_ref: Ref,
    weight_ref: Ref,
    q_ref: Ref,
    k_ref: Ref,
    v_ref: Ref,
    *,
    heads: int,
    group: int,
    dim: int,
    epsilon: float | None,
) -> None:
    """One block of tokens and `heads` KV heads; `epsilon` is None where nothing is normalised."""
    cos, sin = cos_ref[...], sin_ref[...]

    def rotated(x: Array, weight: Array) -> Array:
        x = x.astype(jnp.float32)
        if epsilon is not None:
            x = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
            # The next layer of arithmetic reads what a checkpoint's own library would have rounded here.
            x = x.astype(q_ref.dtype).astype(jnp.float32)
        other = swapped(x)
        return (x * cos + other * sin).astype(q_ref.dtype)

    def part(index: int) -> slice:
        return slice(index * dim, (index + 1) * dim)

    for head in range(heads):
        first = head * (group + 2)
        for query in range(group):
            q_ref[:, part(head * group + query)] = rotated(qkv_ref[:, part(first + query)], weight_ref[0:1])
        k_ref[:, part(head)] = rotated(qkv_ref[:, part(first + group)], weight_ref[1:2])
        v_ref[:, part(head)] = qkv_ref[:, part(first + group + 1)]
