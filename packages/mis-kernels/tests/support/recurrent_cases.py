"""Rows for recurrent layers, their chunks, and what PyTorch makes of them, by transformers' own functions."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as oracle

from kernel_cases import on_host
from mis_kernels import CARRIED, CHUNK, EMPTY, NOWHERE, Chunks, RecurrentShape, RecurrentStates, gated_delta
from mis_kernels.backends import ANY_HEADS, choose
from mis_testing.tolerances import rounding

SHAPE = RecurrentShape(key_heads=2, value_heads=4, key_dim=32, value_dim=16, taps=4)
SLOTS, ROOM = 6, 16

LIMIT = rounding("float32", terms=CHUNK + SHAPE.key_dim, chained=4)
"""Of results and states beside the largest of them: what rows of a chunk add up, four times one after another."""

apply = jax.jit(gated_delta, static_argnames=("shape", "backend"))


class Rows(NamedTuple):
    """Arguments of the operation that have a row for each token, in host memory."""

    inputs: np.ndarray
    decay: np.ndarray
    rate: np.ndarray

    def at(self, index: np.ndarray | slice) -> "Rows":
        return Rows(*(x[index] for x in self))


def rows_of(
    tokens: int, shape: RecurrentShape = SHAPE, *, decay: float | None = None, strongest: float = 20, seed: int = 0
) -> Rows:
    """Return random rows; factors of decays spread from 1 - 1e-4 to `exp(-strongest)`, or all have one logarithm."""
    random = np.random.default_rng(seed)
    logs = -np.exp(random.uniform(np.log(1e-4), np.log(strongest), (tokens, shape.value_heads)))
    return Rows(
        random.standard_normal((tokens, shape.channels)).astype(np.float32),
        (logs if decay is None else np.full_like(logs, decay)).astype(np.float32),
        random.uniform(0, 1, (tokens, shape.value_heads)).astype(np.float32),
    )


@functools.cache
def kernel_of(shape: RecurrentShape = SHAPE) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((shape.channels, shape.taps)).astype(np.float32) / 2


def states_of(shape: RecurrentShape = SHAPE, *, seed: int = 3) -> RecurrentStates:
    """Return slots full of random numbers."""
    random, empty = np.random.default_rng(seed), RecurrentStates.zeros(SLOTS, shape)
    return RecurrentStates(*(jnp.asarray(random.standard_normal(x.shape), jnp.float32) for x in empty))


Entry = tuple[int, int, int, int]
"""A chunk: first row, rows, slot that it reads, slot that it writes."""


def segment(first: int, length: int, read: int = EMPTY, write: int = NOWHERE) -> list[Entry]:
    """Return the chunks of a run of rows that starts from a slot and leaves its state in one."""
    begins = range(first, first + length, CHUNK)
    return [
        (
            begin,
            min(CHUNK, first + length - begin),
            read if begin == first else CARRIED,
            write if begin == begins[-1] else NOWHERE,
        )
        for begin in begins
    ]


def listed(entries: Sequence[Entry], room: int = ROOM) -> Chunks:
    """Return the chunks, followed by entries that mean nothing and would be noticed."""
    lists = np.array([*entries, *[(0, CHUNK, CARRIED, 0)] * (room - len(entries))], np.int32)
    return Chunks(*lists.T, np.asarray(len(entries), np.int32))


def computed(
    rows: Rows, entries: Sequence[Entry], states: RecurrentStates | None = None, backend: str = "xla",
    shape: RecurrentShape = SHAPE,
) -> tuple[np.ndarray, RecurrentStates]:  # fmt: skip
    """Return what the operation gives, in host memory.

    Args:
        rows: Of the step, in float32, which a backend for models in bfloat16 takes, too.
        entries: Chunks.
        states: Slots; default: `states_of`.
        backend: Name of who computes.
        shape: Of the layer.
    """
    states = states_of(shape) if states is None else states
    with on_host():
        chosen = choose(ANY_HEADS, "bfloat16", backend)
        found, states = apply(
            *map(jnp.asarray, rows), kernel_of(shape), states, listed(entries), shape=shape, backend=chosen
        )
    return np.asarray(found), RecurrentStates(*map(np.asarray, states))


class Expected(NamedTuple):
    """What PyTorch gives for one sequence."""

    found: np.ndarray
    memory: np.ndarray
    inputs: np.ndarray


def expected(
    rows: Rows, shape: RecurrentShape = SHAPE, start: RecurrentStates | None = None, rule: str = "recurrent"
) -> Expected:
    """Return what transformers computes for one sequence, after a state or from nothing.

    Args:
        rows: Of the sequence.
        shape: Of the layer.
        start: State before it, without the axis of slots.
        rule: `recurrent` or `chunk`.
    """
    memory = None if start is None else torch.from_numpy(np.array(start.memory))[None]
    last = np.zeros((shape.taps - 1, shape.channels), np.float32) if start is None else np.asarray(start.inputs)
    window = np.concatenate([last, rows.inputs])
    weight = torch.from_numpy(kernel_of(shape))
    mixed = oracle.causal_conv1d_fn(torch.from_numpy(window.T.copy())[None], weight, activation="silu")
    mixed = mixed[0, :, shape.taps - 1 :].T[None]
    keys = shape.key_heads * shape.key_dim
    q, k, v = torch.split(mixed, [keys, keys, shape.value_heads * shape.value_dim], dim=-1)
    q, k = (x.reshape(1, len(rows.inputs), shape.key_heads, shape.key_dim) for x in (q, k))
    apply_rule = getattr(oracle, f"torch_{rule}_gated_delta_rule")
    found, memory = apply_rule(
        q, k, v.reshape(1, -1, shape.value_heads, shape.value_dim),
        g=torch.from_numpy(rows.decay)[None], beta=torch.from_numpy(rows.rate)[None],
        initial_state=memory, output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    return Expected(found[0].numpy(), memory[0].numpy(), window[len(window) - shape.taps + 1 :])


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Fail unless two arrays agree beside the largest number of either."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=LIMIT * np.abs(wanted).max())
