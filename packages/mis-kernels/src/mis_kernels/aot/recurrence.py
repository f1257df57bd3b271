"""What is compiled of recurrent layers: their kernel alone, on one chip."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mis_kernels.aot.programs import DTYPE, STEP_TOKENS, Program, Row
from mis_kernels.aot.schedules import BundleRun, read_bodies
from mis_kernels.aot.targets import Topology
from mis_kernels.backends.tpu.recurrence import tpu_gated_delta
from mis_kernels.recurrence import Chunks, RecurrentShape, RecurrentStates
from mis_kernels.target import compiling_for

STATE_SLOTS = 8

RECURRENT_SHAPES = [RecurrentShape(16, 16, 128, 128, 4), RecurrentShape(16, 32, 128, 128, 4)]
"""Of Qwen3.5 0.8B; of models with twice as many value heads."""


def recurrence_program(target: Topology, shape: RecurrentShape) -> Program:
    """Return the kernel of a layer; what a block of two windows takes is reported, and the state after it."""
    inputs = jax.ShapeDtypeStruct((STEP_TOKENS, shape.channels), DTYPE)
    factors = jax.ShapeDtypeStruct((STEP_TOKENS, shape.value_heads), jnp.float32)
    kernel = jax.ShapeDtypeStruct((shape.channels, shape.taps), jnp.float32)
    states = jax.eval_shape(partial(RecurrentStates.zeros, STATE_SLOTS, shape))
    numbers = np.zeros(STEP_TOKENS, np.int32)
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
