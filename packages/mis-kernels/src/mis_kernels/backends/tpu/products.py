"""Products with quantised weights in one pass: rows are turned and quantised, multiplied, and become floats again.

XLA has a pass over memory for each of these, and takes twice as long as for the product in bfloat16. The kernel keeps
quantised rows in VMEM while it reads the weight once, some columns at a time; what comes before and after a product
of a piece is worked on while the matrix units compute other pieces. A folded norm's sum of squares is taken on the way.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int32

from mis_kernels.activations import Gate
from mis_kernels.backends.tpu.fetch import LANES, Ref, Scalar, in_hbm
from mis_kernels.quantized import LARGEST, QuantizedWeight, hadamard
from mis_kernels.target import target

PIECE = 256
"""Columns, and summands to turn, that are worked on together: a matrix unit is as wide."""
STRIP = 256
"""Rows that are worked on together."""
TILE_ROWS = 32
"""Rows of int8 in a tile of memory: where blocks of rows begin."""

_BLOCK_BYTES = 4 * 2**20  # of rows that a grid step reads
_WEIGHT_BYTES = 3 * 2**20  # that a grid step's products are made with
_QUANTISED_BYTES = 16 * 2**20
VMEM_LIMIT = 56 * 2**20


class ProductSizes(NamedTuple):
    """How a product is cut into grid steps.

    Attributes:
        together: Rows whose integers stay in VMEM while the weight is read.
        rows: Rows of a grid step.
        columns: Columns of a grid step.
    """

    together: int
    rows: int
    columns: int

    @classmethod
    def of(cls, rows: int, depth: int, columns: int, parts: int, unit: int = LANES) -> Self:
        """Choose them for a product of `rows` rows with `parts` weights of `depth` summands and `columns` columns.

        Grid steps have whole units of so many columns.
        """
        block, most = rows, min(4 * STRIP, _BLOCK_BYTES // (2 * depth))
        while block > most and block % (2 * TILE_ROWS) == 0:
            block //= 2
        together = rows
        while together % 2 == 0 and together // 2 % block == 0 and together * depth > _QUANTISED_BYTES:
            together //= 2
        units = columns // unit
        most = max(_WEIGHT_BYTES // (depth * parts * unit), 1)
        fitting = max(n for n in range(1, units + 1) if units % n == 0 and n <= most)
        return cls(together, block, fitting * unit)

    def grid(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Return the grid: what stays together, columns, and rows, which change soonest."""
        return rows // self.together, columns // self.columns, self.together // self.rows


class IndexMaps(NamedTuple):
    """Which blocks a grid step of `ProductSizes.grid` takes: the arguments are its indices and the layer."""

    row: Callable[..., tuple[Scalar, int]]
    row_once: Callable[..., tuple[Scalar, int]]
    cell: Callable[..., tuple[Scalar, Scalar]]
    weights: Callable[..., tuple[Scalar, int, int, Scalar]]
    whole: Callable[..., tuple[int, int]]


def index_maps(grid: tuple[int, int, int]) -> IndexMaps:
    """Return the maps of a grid; with `row_once` only the first columns' steps read rows."""

    def row(group: Scalar, column: Scalar, index: Scalar, layer: Ref) -> tuple[Scalar, int]:
        return group * grid[2] + index, 0

    def row_once(group: Scalar, column: Scalar, index: Scalar, layer: Ref) -> tuple[Scalar, int]:
        # The other steps name the last again, so that nothing is copied.
        return group * grid[2] + jnp.where(column == 0, index, grid[2] - 1), 0

    def cell(group: Scalar, column: Scalar, index: Scalar, layer: Ref) -> tuple[Scalar, Scalar]:
        return group * grid[2] + index, column

    def weights(group: Scalar, column: Scalar, index: Scalar, layer: Ref) -> tuple[Scalar, int, int, Scalar]:
        return layer[0], 0, 0, column

    def whole(*_: Scalar | Ref) -> tuple[int, int]:
        return 0, 0

    return IndexMaps(row, row_once, cell, weights, whole)


def fits(depth: int, columns: int) -> bool:
    """Whether the kernel takes weights of so many summands and columns: they fill lanes."""
    return depth % LANES == 0 and columns % LANES == 0


def tpu_quantized_product(
    x: Float[Array, "rows in"],
    weight: QuantizedWeight,
    layer: Int32[Array, ""],
    residual: Float[Array, "rows out"] | None = None,
    epsilon: float | None = None,
    gate: Gate = "silu",
) -> Float[Array, "rows out"]:
    """Multiply with one layer's weight; of a pair, return gate(x gate) * (x up). A row's bits depend on it alone.

    Args:
        x: Activations; a multiple of 32 rows.
        weight: A stack over layers that `fits`; of weights, or of pairs, a gate and what it gates.
        layer: Which layer of it, of which no copy is made.
        residual: Is added to the rounded product.
        epsilon: Of the folded norm in front of the product; None: there is none.
        gate: What the gate of a pair goes through.

    Raises:
        ValueError: rows or weight do not fit the kernel.
    """
    values, scales = weight.values, weight.scales
    if values.ndim == 3:
        values, scales = values[:, None], scales[:, None]
    (rows, depth), (layers, parts, _, columns) = x.shape, values.shape
    if rows % TILE_ROWS or not fits(depth, columns):
        raise ValueError(
            f"x, weight: {rows} rows, {depth} summands, {columns} columns; rows must be a multiple of {TILE_ROWS}, "
            f"the others of {LANES}"
        )
    sizes = ProductSizes.of(rows, depth, columns, parts)
    grid = sizes.grid(rows, columns)

    maps = index_maps(grid)
    rotation = jnp.asarray(block_rotation(depth, weight.block), x.dtype)
    others = () if residual is None else (in_hbm(residual),)
    out = pl.BlockSpec((sizes.rows, sizes.columns), maps.cell)
    return pl.pallas_call(
        partial(product_kernel, block=weight.block, epsilon=epsilon, gate=gate),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[
                pl.BlockSpec((sizes.rows, depth), maps.row_once),
                pl.BlockSpec((1, parts, depth, sizes.columns), maps.weights),
                pl.BlockSpec((1, parts, 1, sizes.columns), maps.weights),
                pl.BlockSpec(rotation.shape, maps.whole),
                *[out for _ in others],
            ],
            out_specs=out,
            scratch_shapes=[
                pltpu.VMEM((sizes.together, depth), jnp.int8),
                pltpu.VMEM((sizes.together, 1), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((rows, columns), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",) * 3, vmem_limit_bytes=VMEM_LIMIT
        ),
        interpret=target().interpret,
        name="quantized_product",
    )(
        jnp.reshape(layer, 1).astype(jnp.int32), in_hbm(x), values, scales.reshape(layers, parts, 1, columns),
        rotation, *others,
    )  # fmt: skip


def product_kernel(
    layer: Ref,
    x: Ref,
    values: Ref,
    scales: Ref,
    rotation: Ref,
    *others: Ref,
    block: int,
    epsilon: float | None,
    gate: Gate,
) -> None:
    """One block of rows and columns; the first columns' steps quantise the rows."""
    *residual, out, quantised, row_scales = others
    column, index = pl.program_id(1), pl.program_id(2)
    num_rows, columns = out.shape
    strips = [slice(begin, min(begin + STRIP, num_rows)) for begin in range(0, num_rows, STRIP)]

    def kept(strip: slice) -> Any:
        return pl.ds(pl.multiple_of(index * num_rows + strip.start, TILE_ROWS), strip.stop - strip.start)

    def multiply(strip: slice, integers: Array, scale: Array) -> None:
        for begin in range(0, columns, PIECE):
            piece = slice(begin, min(begin + PIECE, columns))
            first, *second = (
                dot(integers, values[0, part, :, piece]) * scale * scales[0, part, :, piece]
                for part in range(values.shape[1])
            )
            if second:
                first = _activated(first, gate) * second[0]
            rounded = first.astype(out.dtype)
            out[strip, piece] = residual[0][strip, piece] + rounded if residual else rounded

    @pl.when(column == 0)
    def _() -> None:
        def integers_of(strip: slice) -> tuple[slice, Array, Array]:
            integers, scale = quantise(x[strip], rotation[...], block, epsilon)
            quantised[kept(strip)], row_scales[kept(strip)] = integers, scale
            return strip, integers, scale

        # A strip is quantised while the one before it is multiplied.
        before = integers_of(strips[0])
        for strip in strips[1:]:
            ahead = integers_of(strip)
            multiply(*before)
            before = ahead
        multiply(*before)

    @pl.when(column > 0)
    def _() -> None:
        for strip in strips:
            multiply(strip, quantised[kept(strip)], row_scales[kept(strip)])


def _activated(x: Array, gate: Gate) -> Array:
    """Return SiLU or GELU of each number, both as `x / 2 (1 + tanh(...))`: of what computes tanh, there is little."""
    half = 0.5 * x
    if gate == "silu":
        return half + half * jnp.tanh(half)
    slope = math.sqrt(2 / math.pi)
    return half + half * jnp.tanh(x * (slope + 0.044715 * slope * (x * x)))


def quantise(x: Array, rotation: Array, block: int, epsilon: float | None) -> tuple[Array, Array]:
    """Return integers of some rows and the rows' scales, the factor of a folded norm included."""
    width = x.shape[1]
    rotated = x.astype(jnp.float32)
    if block > 1:
        precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
        size = len(rotation)
        rotated = jnp.concatenate(
            [
                jnp.dot(x[:, begin : begin + size], rotation, precision=precision, preferred_element_type=jnp.float32)
                for begin in range(0, width, size)
            ],
            axis=1,
        )
    largest = jnp.abs(rotated).max(1, keepdims=True)
    inverse = jnp.where(largest > 0, LARGEST / largest, 0.0)
    scale = largest * (1 / LARGEST)
    if epsilon is not None:
        # Turns lengthen every row by the same factor.
        scale *= lax.rsqrt((rotated * rotated).sum(1, keepdims=True) * (1 / (width * block)) + epsilon)
    return jnp.round(rotated * inverse).astype(jnp.int32).astype(jnp.int8), scale


def dot(integers: Array, weight: Array) -> Array:
    """Multiply integers exactly; return floats."""
    return lax.dot_general(integers, weight, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32).astype(
        jnp.float32
    )


def block_rotation(depth: int, block: int) -> Float[np.ndarray, "in in"]:
    """Return the matrix that turns some blocks of summands side by side, as wide as a matrix unit if that divides."""
    size = PIECE if depth % PIECE == 0 else LANES
    return np.kron(np.eye(size // block, dtype=np.float32), hadamard(block))
