"""What is compiled of recurrent layers: their kernel alone, on one chip."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mis_kernels.aot.programs import DTYPE, STEP_TOKENS, Program, Row
from mis_kernels.aot.schedules import BundleRun, GridSchedule, read_bodies
from mis_kernels.aot.targets import Topology
from mis_kernels.aot.worker import run_job
from mis_kernels.backends.tpu.recurrence import tpu_gated_delta
from mis_kernels.recurrence import Chunks, RecurrentShape, RecurrentStates
from mis_kernels.target import compiling_for

STATE_SLOTS = 8


class RecurrentSize(NamedTuple):
    """What the kernel of recurrent layers is compiled for.

    Attributes:
        shape: Of a layer on one device.
        tokens: Of the step.
    """

    shape: RecurrentShape
    tokens: int = STEP_TOKENS


RECURRENT_SIZES = [RecurrentSize(RecurrentShape(16, value_heads, 128, 128, 4)) for value_heads in (16, 32)]
"""Of Qwen3.5 0.8B; of models with twice as many value heads."""


def recurrence_schedules(target: str, sizes: Sequence[RecurrentSize]) -> list[list[GridSchedule]]:
    """Compile the kernel for each size; return the schedules of a block, and of the state after it.

    Raises:
        RuntimeError: the compiler refused one.
    """
    return [row["schedules"] for row in run_job(target, recurrence_program, sizes)] if sizes else []


def recurrence_program(target: Topology, size: RecurrentSize) -> Program:
    """Return the kernel of a layer; what a block of two windows takes is reported, and the state after it."""
    shape, tokens = size
    inputs = jax.ShapeDtypeStruct((tokens, shape.channels), DTYPE)
    factors = jax.ShapeDtypeStruct((tokens, shape.value_heads), jnp.float32)
    kernel = jax.ShapeDtypeStruct((shape.channels, shape.taps), jnp.float32)
    states = jax.eval_shape(partial(RecurrentStates.zeros, STATE_SLOTS, shape))
    numbers = np.zeros(tokens, np.int32)
    chunks = jax.eval_shape(lambda: Chunks(numbers, numbers, numbers, numbers, np.zeros((), np.int32)))

    def compute(*arguments: Any) -> tuple[Array, RecurrentStates]:
        with compiling_for(target.chip):
            return tpu_gated_delta(*arguments, shape=shape)

    def report(_: Any, runs: list[BundleRun]) -> Row:
        walk = max(run.depth for run in runs)  # the loop over chunks
        block, state = read_bodies([run for run in runs if run.depth == walk], 2)
        return {"bundles": {"block": block.body, "state": state.body}, "schedules": [block, state]}

    name = f"gated delta, {shape.key_heads} key heads, {shape.value_heads} value heads, {DTYPE}"
    arguments = inputs, factors, factors, kernel, states, chunks
    return Program(name, compute, arguments, donated=(4,), kernel="gated_delta", report=report)
