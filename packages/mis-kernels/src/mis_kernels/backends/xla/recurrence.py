"""Recurrent layers in plain XLA: one loop over a step's chunks, whose states stay where they are.

A body of the loop computes one chunk, of the same shape wherever its rows lie. So its bits depend on nothing but its
rows, their number and the state before them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.backends.xla.delta_rule import Learnt, forget_and_learn, read_and_solve
from mis_kernels.recurrence import CARRIED, CHUNK, EMPTY, Chunks, RecurrentShape, RecurrentStates
from mis_kernels.storage import from_bits, to_bits

NARROW = CHUNK // 2
"""Rows that are computed for a chunk of no more; items are often that short."""


class Branches(NamedTuple):
    """Which branches of the loop each chunk takes, `[chunks]`. Scopes in a compiled program have the same names.

    Attributes:
        narrow: It has at most `NARROW` rows.
        kept: The state after it is needed.
        stored: That state goes to a slot.
        unmoved_32: From its first row on there are `NARROW` rows in the array.
        unmoved_64: There are `CHUNK` rows.
    """

    narrow: Array
    kept: Array
    stored: Array
    unmoved_32: Array
    unmoved_64: Array

    @classmethod
    def of(cls, chunks: Chunks, tokens: int, slots: int) -> Self:
        """Return the branches of chunks in an array of so many rows, with so many slots."""
        rows, lens, reads, writes = map(jnp.asarray, chunks[:4])
        stored = writes < slots
        carried = jnp.concatenate([reads[1:] == CARRIED, jnp.zeros(1, bool)])
        unmoved = (rows <= max(tokens, CHUNK) - size for size in (NARROW, CHUNK))
        return cls(lens <= NARROW, stored | carried, stored, *unmoved)


def gated_delta(
    inputs: Array,
    decay: Array,
    rate: Array,
    kernel: Array,
    states: RecurrentStates,
    chunks: Chunks,
    *,
    shape: RecurrentShape,
) -> tuple[Array, RecurrentStates]:
    """Compute chunk after chunk. Arguments and result as in `mis_kernels.gated_delta`."""
    tokens, slots = len(inputs), len(states.memory)
    lacking, inputs = max(CHUNK - tokens, 0), inputs[:, : shape.channels]
    inputs, decay, rate = (jnp.pad(x, ((0, lacking), (0, 0))) for x in (to_bits(inputs), decay, rate))
    kernel = kernel.T
    rows, lens, reads, writes, count = map(jnp.asarray, chunks)
    branches = Branches.of(chunks, tokens, slots)

    def compute(number: Array, carry: tuple[Array, RecurrentStates, RecurrentStates]) -> tuple:
        out, states, left = carry
        takes: Branches = jax.tree.map(lambda taken: taken[number], branches)
        with jax.named_scope("states"):
            start = jax.tree.map(lambda stored, left: _start(stored, left, reads[number]), states, left)
        window = partial(_Window, rows[number], lens[number], len(inputs))

        def one_chunk(size: int) -> tuple[Array, Learnt, Array]:
            given = window(size)
            joined = jnp.concatenate([start.inputs, from_bits(given.read(inputs)).astype(jnp.float32)])
            found, learnt = read_and_solve(joined, given.read(decay), given.read(rate), kernel, start.memory, shape)
            lacking = (0, CHUNK - size), (0, 0)
            found, keys, values = (
                jnp.pad(x, ((0, 0), *lacking)) for x in (found.swapaxes(0, 1), learnt.keys, learnt.values)
            )
            last = lax.dynamic_slice_in_dim(joined, lens[number], shape.taps - 1)
            return found.swapaxes(0, 1), Learnt(keys, values, learnt.fade), last

        with jax.named_scope("narrow"):
            found, learnt, last = lax.cond(takes.narrow, partial(one_chunk, NARROW), partial(one_chunk, CHUNK))
        with jax.named_scope("kept"):
            left = lax.cond(
                takes.kept, lambda: RecurrentStates(forget_and_learn(start.memory, learnt), last), lambda: start
            )
        # In place as long as the slots pass through nothing else: XLA copies them for a conditional that also reads.
        store = partial(_stored, left, writes[number])
        with jax.named_scope("states"), jax.named_scope("stored"):
            states = lax.cond(takes.stored, store, lambda states: states, states)
        return window(CHUNK).write(out, found), states, left

    nothing = jnp.zeros((len(inputs), shape.value_heads, shape.value_dim), jnp.float32)
    left = jax.tree.map(lambda stored: jnp.zeros(stored.shape[1:], stored.dtype), states)
    with jax.named_scope("chunks"):
        out, states, _ = lax.fori_loop(0, count, compute, (nothing, states, left))
    return out[:tokens], states


class _Window:
    """The rows of a chunk in an array of `tokens` rows, `size` at a time.

    A slice that would reach past the array's end begins earlier, since XLA moves it there anyway; its rows are then
    shifted, so that the chunk's first is always the first.
    """

    def __init__(self, first: Array, length: Array, tokens: int, size: int) -> None:
        self.begin = jnp.minimum(first, tokens - size)
        self.shift = first - self.begin
        self.length, self.size = length, size

    def read(self, x: Array) -> Array:
        """Return the chunk's rows, and zeros after them, `[size, ...]`."""
        rows = self._rolled(lambda: lax.dynamic_slice_in_dim(x, self.begin, self.size), self.shift)
        return jnp.where((jnp.arange(self.size) < self.length)[:, None], rows, jnp.zeros((), x.dtype))

    def write(self, x: Array, rows: Array) -> Array:
        """Return the array with the chunk's rows in place, and no others."""
        old = lax.dynamic_slice_in_dim(x, self.begin, self.size)
        row = jnp.arange(self.size)[:, None, None]
        is_own = (row >= self.shift) & (row < self.shift + self.length)
        new = jnp.where(is_own, self._rolled(lambda: rows, self.size - self.shift), old)
        return lax.dynamic_update_slice_in_dim(x, new, self.begin, 0)

    def _rolled(self, rows: Callable[[], Array], first: Array) -> Array:
        """Return rows from the one numbered `first` on, then those before it; nearly always, none are moved."""

        def roll() -> Array:
            return lax.dynamic_slice_in_dim(jnp.concatenate([rows(), rows()]), first, self.size)

        with jax.named_scope(f"unmoved_{self.size}"):
            return lax.cond(self.shift == 0, rows, roll)


def _start(stored: Array, left: Array, read: Array) -> Array:
    """Return what a chunk starts from: a slot's, what the chunk before it left, or zeros."""
    slot = lax.dynamic_index_in_dim(stored, jnp.maximum(read, 0), keepdims=False)
    return jnp.where(read == EMPTY, 0, jnp.where(read == CARRIED, left, slot))


def _stored(left: RecurrentStates, slot: Array, states: RecurrentStates) -> RecurrentStates:
    """Return the slots with one of them replaced."""
    return jax.tree.map(lambda stored, new: lax.dynamic_update_index_in_dim(stored, new, slot, 0), states, left)
