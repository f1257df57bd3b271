"""The TPU kernel of recurrent layers: walks over a step's chunks, and carries or copies the states between them."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from mis_kernels.backends.tpu.chunk_walk import NO_SLOT, ChunkWalk
from mis_kernels.backends.tpu.delta_rule import BlockRows, are_bounded, forget_and_learn, read_and_solve
from mis_kernels.backends.tpu.fetch import LANES, Ref
from mis_kernels.backends.tpu.windows import HeadInputs, WindowPair
from mis_kernels.recurrence import CARRIED, EMPTY, RecurrentShape

_SLOT, _LEFT, _ZEROS = range(3)
"""Where a chunk's state is in scratch memory: fetched from a slot, left by the chunk before, or zeros."""


class KernelSizes(NamedTuple):
    """Static facts of one compilation.

    Attributes:
        shape: Of the layer.
        heads: Value heads of a grid step.
        slots: Of all layers.
        matrix_unit: Rows and columns of a matrix unit.
    """

    shape: RecurrentShape
    heads: int
    slots: int
    matrix_unit: int

    @property
    def keys(self) -> int:
        """Key heads of a grid step."""
        return self.heads * self.shape.key_heads // self.shape.value_heads


def gated_delta_kernel(
    rows: Ref,
    lens: Ref,
    reads: Ref,
    writes: Ref,
    count: Ref,
    q: Ref,
    k: Ref,
    v: Ref,
    rates: Ref,
    q_taps: Ref,
    k_taps: Ref,
    v_taps: Ref,
    _memory: Ref,
    _inputs: Ref,
    out: Ref,
    memory: Ref,
    inputs: Ref,
    joined: Ref,
    memory_here: Ref,
    inputs_here: Ref,
    copied: Ref,
    *,
    sizes: KernelSizes,
) -> None:
    """Compute all chunks for the heads of a grid step."""
    out[...] = jnp.zeros_like(out)
    for here in (memory_here, inputs_here):
        here[_ZEROS] = jnp.zeros_like(here[_ZEROS])
    walk = ChunkWalk(rows, lens, reads, writes, count, sizes.slots)
    states = _States((memory, inputs), (memory_here, inputs_here), copied, sizes)
    parts = [
        HeadInputs(ref, taps, slice(index * LANES, (index + 1) * LANES))
        for ref, taps, number in ((q, q_taps, sizes.keys), (k, k_taps, sizes.keys), (v, v_taps, sizes.heads))
        for index in range(number)
    ]

    def compute(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        number, held, is_storing, is_alone = carry
        read, visit = reads[number], walk.visit(number, held, is_alone)
        # What is to be read may still be on its way to its slot, and what is on its way is not to change.
        pl.when(is_storing & (visit.is_fetched | visit.is_kept))(states.await_stored)
        pl.when(visit.is_fetched)(lambda: states.fetch(read))
        start = jnp.where(read == EMPTY, _ZEROS, jnp.where(read == CARRIED, _LEFT, _SLOT))
        both, is_one = walk.windows(number, visit.last, tokens=q.shape[0]), visit.last == number
        block = WindowPair(parts, joined, *both, is_one=is_one)
        is_sound = _compute_block(block, states, start, rates, out, visit.is_kept, sizes)
        pl.when(visit.is_stored)(lambda: states.begin_to_store(writes[number]))
        is_storing = jnp.where(visit.is_fetched | visit.is_kept, visit.is_stored, is_storing)
        # Products carry what is not finite from one item to the other: then each is computed by itself.
        is_again = ~is_one & ~is_sound
        return jnp.where(is_again, number, visit.last + 1), visit.held, is_storing, is_again

    start = jnp.int32(0), jnp.int32(NO_SLOT), jnp.bool_(False), jnp.bool_(False)
    _, _, is_storing, _ = lax.while_loop(lambda carry: carry[0] < count[0], compute, start)
    pl.when(is_storing)(states.await_stored)


class _States:
    """The states that chunks start from, in scratch memory, and copies of them from and to slots."""

    def __init__(self, stored: tuple[Ref, Ref], here: tuple[Ref, Ref], copied: Ref, sizes: KernelSizes) -> None:
        self.stored, self.copied, self.sizes = stored, copied, sizes
        self.memory, self.inputs = here
        self.step = pl.program_id(0)

    def fetch(self, slot: Array) -> None:
        """Copy a slot here."""
        copies = [pltpu.make_async_copy(there, here, self.copied.at[0]) for there, here in self._pairs(slot, _SLOT)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    def begin_to_store(self, slot: Array) -> None:
        """Begin to copy what the last chunk left to a slot."""
        for there, here in self._pairs(slot, _LEFT):
            pltpu.make_async_copy(here, there, self.copied.at[1]).start()

    def await_stored(self) -> None:
        """Wait until it has been copied."""
        for there, here in self._pairs(0, _LEFT):  # any slot: what is waited for is as many bytes
            pltpu.make_async_copy(here, there, self.copied.at[1]).wait()

    def _pairs(self, slot: Array | int, index: int) -> list[tuple[Ref, Ref]]:
        """Return what a slot has of this grid step's heads, and where it is here."""
        memory, inputs = self.stored
        heads, keys, key_heads = self.sizes.heads, self.sizes.keys, self.sizes.shape.key_heads
        pairs = [(memory.at[slot, pl.ds(self.step * heads, heads)], self.memory.at[index])]
        begin = 0
        for before, number in ((0, keys), (key_heads, keys), (2 * key_heads, heads)):
            there = pl.ds(pl.multiple_of((before + self.step * number) * LANES, LANES), number * LANES)
            here = pl.ds(begin, number * LANES)
            pairs.append((inputs.at[slot, :, there], self.inputs.at[index, :, here]))
            begin += number * LANES
        return pairs


def _compute_block(
    windows: WindowPair, states: _States, start: Array, rates: Ref, out: Ref, is_kept: Array, sizes: KernelSizes
) -> Array:
    """Compute two windows, of one chunk or of two that start from the same state; keep the state after the first.

    Returns:
        Whether neither changed the other.
    """
    heads, keys = sizes.heads, sizes.keys
    mixed = windows.mixed(states.inputs, start)
    queries, keys_of = ([_normalised(x) for x in mixed[first : first + keys]] for first in (0, keys))
    rates_here = windows.rows(rates.at[0])
    key_of = [head * keys // heads for head in range(heads)]
    rows = BlockRows(
        [queries[key] * LANES**-0.5 for key in key_of],
        [keys_of[key] for key in key_of],
        mixed[2 * keys :],
        *([rates_here[:, first + head : first + head + 1] for head in range(heads)] for first in (0, heads)),
    )

    def memory() -> list[Array]:
        return [states.memory[start, head] for head in range(heads)]

    found, learnt = read_and_solve(rows, memory(), windows.is_one, sizes.matrix_unit)
    for head in range(heads):
        windows.write(out.at[head], found[head])

    @pl.when(is_kept)
    def _() -> None:
        for head, after in enumerate(forget_and_learn(memory(), rows.keys, learnt, sizes.matrix_unit)):
            states.memory[_LEFT, head] = after
        windows.keep_inputs(states.inputs.at[_LEFT])

    return are_bounded(learnt)


def _normalised(x: Array) -> Array:
    return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)
