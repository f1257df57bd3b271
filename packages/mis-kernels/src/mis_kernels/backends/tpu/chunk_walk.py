"""How the TPU kernel of recurrent layers walks over a step's chunks: which it computes together, what it copies.

A state stays in VMEM while chunks carry it, or while they read one slot. Two chunks of up to half the rows that start
from the same state, and leave none, are computed together: items are often that short.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.backends.tpu.delta_rule import WINDOW
from mis_kernels.backends.tpu.fetch import Ref
from mis_kernels.backends.tpu.windows import RowWindow
from mis_kernels.recurrence import CARRIED, Chunks

NO_SLOT = -1
"""In place of the slot whose state is in VMEM: none is."""


class Visit(NamedTuple):
    """What is done for one chunk, or for two together.

    Attributes:
        last: The last of the chunks that are computed; the first itself, or the next.
        is_kept: Whether the state after it is stored, or carried to the next.
        is_stored: Whether that state goes to a slot.
        is_fetched: Whether the state before it comes from a slot, and is not in VMEM yet.
        held: Slot whose state is in VMEM afterwards, or `NO_SLOT`.
    """

    last: Array
    is_kept: Array
    is_stored: Array
    is_fetched: Array
    held: Array


class ChunkWalk(NamedTuple):
    """The fields of `mis_kernels.Chunks`, in SMEM or elsewhere, the count as a list of one; and the number of slots."""

    rows: Ref
    lens: Ref
    reads: Ref
    writes: Ref
    count: Ref
    slots: int

    def visit(self, number: Array, held: Array, is_alone: Array | bool = False) -> Visit:
        """Return what is done for a chunk, which may have to be alone, with the state of a slot in VMEM."""
        read, write = self.reads[number], self.writes[number]
        is_stored = write < self.slots
        after = jnp.where(read >= 0, read, held)
        return Visit(
            last=jnp.where(is_alone, number, self._last_beside(number)),
            is_kept=self._is_kept(number),
            is_stored=is_stored,
            is_fetched=(read >= 0) & (read != held),
            held=jnp.where(is_stored & (write == after), NO_SLOT, after),
        )

    def windows(self, number: Array, last: Array, tokens: int) -> tuple[RowWindow, RowWindow]:
        """Return the windows of a chunk, or of two."""
        first, length, is_one = self.rows[number], self.lens[number], last == number
        return (
            RowWindow.at(first, jnp.minimum(length, WINDOW), tokens),
            RowWindow.at(
                jnp.where(is_one, first + WINDOW, self.rows[last]),
                jnp.where(is_one, jnp.maximum(length - WINDOW, 0), self.lens[last]),
                tokens,
            ),
        )

    def _is_kept(self, number: Array) -> Array:
        after = jnp.minimum(number + 1, self.count[0] - 1)
        return (self.writes[number] < self.slots) | ((after > number) & (self.reads[after] == CARRIED))

    def _last_beside(self, number: Array) -> Array:
        after = jnp.minimum(number + 1, self.count[0] - 1)
        is_short = jnp.maximum(self.lens[number], self.lens[after]) <= WINDOW
        is_alike = (self.reads[number] == self.reads[after]) & (self.reads[number] != CARRIED)
        are_kept = self._is_kept(number) | self._is_kept(after)
        return jnp.where(is_short & is_alike & ~are_kept, after, number)


class WalkCounts(NamedTuple):
    """What a walk over a list of chunks comes to.

    Attributes:
        blocks: Visits: of one chunk or of two.
        kept: Chunks whose state is carried or stored.
        fetched: States that come from a slot.
    """

    blocks: int
    kept: int
    fetched: int


def count_walk(chunks: Chunks, slots: int) -> WalkCounts:
    """Walk over a step's chunks without computing them; no item is taken to be one that has to be computed alone.

    Args:
        chunks: Of one device, on the host.
        slots: As in the kernel: a number from here on is no slot.
    """
    rows, lens, reads, writes, count = map(jnp.asarray, chunks)
    walk = ChunkWalk(rows, lens, reads, writes, count[None], slots)

    def visited(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, held, counts = carry
        visit = walk.visit(number, held)
        return visit.last + 1, visit.held, counts + jnp.stack([jnp.bool_(True), visit.is_kept, visit.is_fetched])

    start = jnp.int32(0), jnp.int32(NO_SLOT), jnp.zeros(3, jnp.int32)
    *_, counts = lax.while_loop(lambda carry: carry[0] < walk.count[0], visited, start)
    return WalkCounts(*counts.tolist())
