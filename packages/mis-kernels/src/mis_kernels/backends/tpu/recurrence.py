"""Recurrent layers on TPUs: one kernel for all chunks of a step, some value heads at a time."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from mis_kernels.backends.tpu.delta_rule import WINDOW
from mis_kernels.backends.tpu.fetch import LANES, in_hbm
from mis_kernels.backends.tpu.recurrence_kernel import KernelSizes, gated_delta_kernel
from mis_kernels.backends.tpu.windows import ALIGNED, FETCHED, SCRATCH_ROWS
from mis_kernels.backends.xla import recurrence as xla
from mis_kernels.recurrence import Chunks, RecurrentShape, RecurrentStates
from mis_kernels.target import target, tpu_chip

MOST_HEADS = 4
"""Value heads of a grid step. One computes while another waits: two have 1.3 times as many bundles in all (v6e)."""

_ROWS_BYTES = 48 * 2**20
"""Most that a step's rows may take in VMEM: v7x has 64 MiB."""

_VMEM_LIMIT = 60 * 2**20


def step_heads(tokens: int, itemsize: int, shape: RecurrentShape) -> int | None:
    """Return the value heads of a grid step.

    None where the kernel does not take the layer: its heads do not fill lanes, more of them share a key head than a
    grid step takes, or the rows do not fit into VMEM.
    """
    shared = shape.value_heads // shape.key_heads
    if (shape.key_dim, shape.value_dim) != (LANES, LANES) or tokens < FETCHED or tokens % ALIGNED:
        return None
    for heads in range(MOST_HEADS, 0, -1):
        divides = shape.value_heads % heads == heads % shared == 2 * shape.key_heads % heads == 0
        row = LANES * ((2 * heads // shared + heads) * itemsize + (heads + 1) * 4)
        if divides and 2 * tokens * row <= _ROWS_BYTES:
            return heads
    return None


def tpu_gated_delta(
    inputs: Array,
    decay: Array,
    rate: Array,
    kernel: Array,
    states: RecurrentStates,
    chunks: Chunks,
    *,
    shape: RecurrentShape,
) -> tuple[Array, RecurrentStates]:
    """Compute all chunks by the kernel where it takes the layer, else by XLA.

    Arguments and result as in `mis_kernels.gated_delta`. What a chunk gives has bits that depend on its own rows, their
    number and the state before it, and on nothing else.
    """
    tokens, slots = len(inputs), len(states.memory)
    heads = step_heads(tokens, inputs.dtype.itemsize, shape)
    if heads is None:
        return xla.gated_delta(inputs, decay, rate, kernel, states, chunks, shape=shape)
    sizes = KernelSizes(shape, heads, slots, matrix_unit=LANES if tpu_chip() == "v5e" else 2 * LANES)
    steps, parts = shape.value_heads // heads, 2 * sizes.keys + heads
    widths = sizes.keys * LANES, sizes.keys * LANES, heads * LANES
    blocks_before = 0, steps, 2 * shape.key_heads // heads
    padded = tokens + WINDOW  # a window may begin at the last row

    def columns(rows: int) -> list[pl.BlockSpec]:
        """Divide the channels of all rows into queries, keys and values of each grid step."""
        return [
            pl.BlockSpec((rows, width), lambda step, *_, before=before: (0, before + step))
            for width, before in zip(widths, blocks_before, strict=True)
        ]

    rates = jnp.concatenate([x.reshape(tokens, steps, heads) for x in (decay, rate)], axis=-1).swapaxes(0, 1)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    scalars = [*map(jnp.asarray, chunks[:-1]), jnp.reshape(chunks.count, 1)]
    rows = [*[inputs] * 3, jnp.pad(rates, ((0, 0), (0, WINDOW), (0, 0))), *[kernel.T] * 3]
    first_state = len(scalars) + len(rows)
    out, *after = pl.pallas_call(
        partial(gated_delta_kernel, sizes=sizes),
        out_shape=[
            jax.ShapeDtypeStruct((shape.value_heads, padded, LANES), jnp.float32),
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in states),
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(steps,),
            in_specs=[
                *columns(tokens),
                pl.BlockSpec((1, padded, 2 * heads), lambda step, *_: (step, 0, 0)),
                *columns(shape.taps),
                anywhere,
                anywhere,
            ],
            out_specs=[pl.BlockSpec((heads, padded, LANES), lambda step, *_: (step, 0, 0)), anywhere, anywhere],
            scratch_shapes=[
                pltpu.VMEM((2, parts, SCRATCH_ROWS, LANES), jnp.float32),
                pltpu.VMEM((3, heads, LANES, LANES), jnp.float32),
                pltpu.VMEM((3, shape.taps - 1, parts * LANES), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        input_output_aliases={first_state: 1, first_state + 1: 2},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=_VMEM_LIMIT),
        interpret=target().interpret,
        name="gated_delta",
    )(*scalars, *rows, *map(in_hbm, states))
    return out[:, :tokens].swapaxes(0, 1), RecurrentStates(*after)
