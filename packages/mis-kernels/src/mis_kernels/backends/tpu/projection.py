"""Queries, keys and values in int8 in one pass: products are normalised and rotated before they are written.

Product and `norm_rope` by themselves write the projection to HBM and read it again. Here the products of some rows and
one KV head wait in VMEM, in one of two buffers, while those before them are turned: the vector units have a head to
work on while the matrix units compute the next. A row's scale cancels out where heads are normalised, and the norms'
weights are in the tables of cosines and sines.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int32

from mis_kernels.backends.tpu import products
from mis_kernels.backends.tpu.fetch import LANES, Ref, Scalar, in_hbm
from mis_kernels.backends.tpu.norm_rope import swapped
from mis_kernels.backends.tpu.products import PIECE, STRIP, TILE_ROWS, ProductSizes, block_rotation
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.target import target
from mis_kernels.weights import HeadRotations, QueriesKeysValues

PAIRS = 4
"""Pairs of strips in a turn of the loop, if there are enough: behind one another they hide what each waits for."""


def is_faster(heads: HeadShape, chip: str | None) -> bool:
    """Whether the kernel takes such heads, which fill lanes, and beats two kernels where it runs.

    Memory is what those wait for, except on v7x, where this one would take a fifth longer than their arithmetic.
    """
    return heads.head_dim % LANES == 0 and chip != "v7x"


def sizes_of(rows: int, depth: int, heads: HeadShape) -> ProductSizes:
    """Choose the sizes of grid steps, which have whole KV heads."""
    unit = (heads.group + 2) * heads.head_dim
    return ProductSizes.of(rows, depth, heads.kv_heads * unit, 1, unit)


def strips_of(sizes: ProductSizes, heads: HeadShape) -> int:
    """Return how many products of a strip of rows and a KV head a grid step has."""
    strip = math.gcd(STRIP, sizes.rows)
    return sizes.rows // strip * (sizes.columns // ((heads.group + 2) * heads.head_dim))


def strips_together(strips: int) -> int:
    """Return how many of them a turn of the kernel's loop has; 0: they are too few for a loop."""
    return 2 * math.gcd(PAIRS, strips // 2)


def tpu_quantized_projection(
    x: Float[Array, "tokens in"],
    weight: QuantizedWeight,
    layer: Int32[Array, ""],
    bias: Float[Array, "kv_heads group_plus_two head_dim"] | None,
    heads: HeadShape,
    rotations: HeadRotations,
    epsilon: float | None = None,
) -> QueriesKeysValues:
    """Multiply with one layer's weight, add the bias, normalise and rotate, all in float32; round once.

    A row's bits depend on it alone.

    Args:
        x: Activations; a multiple of 32 rows.
        weight: A stack over layers; per KV head its query heads, then its key, then its value, as columns.
        layer: Which layer of it, of which no copy is made.
        bias: Added to the product.
        heads: Of the weight, of a multiple of 128 elements.
        rotations: Of the tokens.
        epsilon: Of the folded norm in front of the product; None: there is none.
    """
    (rows, depth), (layers, _, columns) = x.shape, weight.values.shape
    dim, counts = heads.head_dim, (heads.group, 1, 1)
    sizes = sizes_of(rows, depth, heads)
    grid = sizes.grid(rows, columns)
    maps = products.index_maps(grid)
    here = sizes.columns // ((heads.group + 2) * dim)
    block_matrix = jnp.asarray(block_rotation(depth, weight.block), x.dtype)
    normed = rotations.q_norm is not None and rotations.k_norm is not None
    norms = jnp.ones((2, dim), jnp.float32)
    if rotations.q_norm is not None and rotations.k_norm is not None:
        # The factor of a mean square is that of a sum of squares and a number.
        norms = math.sqrt(dim) * jnp.stack([rotations.q_norm, rotations.k_norm]).astype(jnp.float32)
    # What is turned has changed places with the other half, and so have its weights.
    norms = jnp.stack([norms, jnp.roll(norms, dim // 2, 1)], axis=1).reshape(4, dim)
    added = [] if bias is None else [bias.reshape(1, -1).astype(jnp.float32)]
    buffer = pltpu.VMEM((math.gcd(STRIP, sizes.rows), (heads.group + 2) * dim), jnp.float32)
    made = pl.pallas_call(
        partial(
            projection_kernel,
            block=weight.block,
            epsilon=epsilon,
            heads=heads._replace(kv_heads=here, heads=here * heads.group),
            head_epsilon=rotations.epsilon if normed else None,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[
                pl.BlockSpec((sizes.rows, depth), maps.row_once),
                pl.BlockSpec((1, 1, depth, sizes.columns), maps.weights),
                pl.BlockSpec((1, 1, 1, sizes.columns), maps.weights),
                pl.BlockSpec(block_matrix.shape, maps.whole),
                *[pl.BlockSpec((sizes.rows, dim), maps.row) for _ in range(2)],
                pl.BlockSpec((4, dim), maps.whole),
                *[pl.BlockSpec((1, sizes.columns), lambda group, column, index, layer: (0, column)) for _ in added],
            ],
            out_specs=[pl.BlockSpec((sizes.rows, here * count * dim), maps.cell) for count in counts],
            scratch_shapes=[
                pltpu.VMEM((sizes.together, depth), jnp.int8),
                pltpu.VMEM((sizes.together, LANES), jnp.float32),
                pltpu.VMEM((4, sizes.rows, dim), jnp.float32),
                *[buffer] * 4,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct((rows, heads.kv_heads * count * dim), x.dtype) for count in counts],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",) * 3, vmem_limit_bytes=products.VMEM_LIMIT
        ),
        interpret=target().interpret,
        name="quantized_projection",
    )(
        jnp.reshape(layer, 1).astype(jnp.int32), in_hbm(x), weight.values[:, None],
        weight.scales.reshape(layers, 1, 1, columns), block_matrix, rotations.cos, rotations.sin, norms, *added,
    )  # fmt: skip
    q, k, v = (each.reshape(rows, -1, dim) for each in made)
    return q, k, v


def projection_kernel(
    layer: Ref,
    x: Ref,
    values: Ref,
    scales: Ref,
    block_matrix: Ref,
    cos: Ref,
    sin: Ref,
    norms: Ref,
    *others: Ref,
    block: int,
    epsilon: float | None,
    heads: HeadShape,
    head_epsilon: float | None,
) -> None:
    """One block of tokens and some KV heads; the first heads' steps quantise the rows."""
    *bias, q, k, v, quantised, row_scales, tables, product_a, product_b, factors_a, factors_b = others
    column, index, num_rows = pl.program_id(1), pl.program_id(2), x.shape[0]
    group, dim = heads.group, heads.head_dim
    strip, width = math.gcd(STRIP, num_rows), (group + 2) * dim
    units = num_rows // strip * heads.kv_heads

    def kept(begin: Scalar) -> Any:
        return pl.ds(pl.multiple_of(index * num_rows + begin, TILE_ROWS), strip)

    @pl.when(column == 0)
    def _() -> None:
        for begin in range(0, num_rows, strip):
            integers, scale = products.quantise(x[begin : begin + strip], block_matrix[...], block, epsilon)
            quantised[kept(begin)], row_scales[kept(begin)] = integers, jnp.broadcast_to(scale, (strip, LANES))

    for n in range(0, 4, 2):
        tables[n], tables[n + 1] = cos[...] * norms[n : n + 1], sin[...] * norms[n + 1 : n + 2]

    def head_of(unit: Scalar) -> tuple[Array, Array]:
        begin = lax.div(unit, heads.kv_heads) * strip
        return lax.rem(unit, heads.kv_heads), pl.multiple_of(begin, math.gcd(strip, TILE_ROWS))

    def multiply(unit: Scalar, product: Ref, factors: Ref) -> None:
        head, begin = head_of(unit)
        integers, scale = quantised[kept(begin)], row_scales[kept(begin)]
        for first in range(0, width, PIECE):
            size = min(PIECE, width - first)
            piece = pl.ds(pl.multiple_of(head * width + first, LANES), size)
            made = products.dot(integers, values[0, 0, :, piece]) * scales[0, 0, :, piece]
            if bias:
                made = made * _across(scale, size) + bias[0][:, piece]
            product[:, first : first + size] = made
            if head_epsilon is not None:
                least = dim * head_epsilon if bias else dim * head_epsilon / (scale * scale)
                for part in range(first, min(first + size, width - dim), dim):
                    own = made[:, part - first : part - first + dim]
                    factor = lax.rsqrt((own * own).sum(1, keepdims=True) + least)
                    factors[:, part : part + dim] = jnp.broadcast_to(_across(factor, dim), own.shape)

    def rotate(unit: Scalar, product: Ref, factors: Ref) -> None:
        head, begin = head_of(unit)
        own, scale = pl.ds(begin, strip), row_scales[kept(begin)]

        def scaled(values: Array) -> Array:
            return values if bias else values * _across(scale, dim)

        for which in range(group + 1):
            part, n = slice(which * dim, (which + 1) * dim), 2 * (which == group)
            rotated = product[:, part] * tables[n, own] + swapped(product[:, part]) * tables[n + 1, own]
            rotated = scaled(rotated) if head_epsilon is None else rotated * factors[:, part]
            to, lane = (k, head * dim) if which == group else (q, head * (group * dim) + which * dim)
            to[own, pl.ds(pl.multiple_of(lane, LANES), dim)] = rotated.astype(to.dtype)
        v[own, pl.ds(pl.multiple_of(head * dim, LANES), dim)] = scaled(product[:, width - dim :]).astype(v.dtype)

    def pair(number: Scalar, carry: None) -> None:
        unit = 2 * number
        multiply(unit + 1, product_b, factors_b)
        rotate(unit, product_a, factors_a)
        multiply(lax.rem(unit + 2, units), product_a, factors_a)  # behind the last pair, for nothing
        rotate(unit + 1, product_b, factors_b)
        return carry

    multiply(0, product_a, factors_a)
    if units > 1:
        lax.fori_loop(0, units // 2, pair, None, unroll=strips_together(units) // 2)
    if units % 2:
        rotate(units - 1, product_a, factors_a)


def _across(x: Array, width: int) -> Array:
    """Repeat what fills all lanes."""
    return x if x.shape[1] == 1 else jnp.concatenate([x] * (width // LANES), axis=1)
