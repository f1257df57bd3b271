"""How tiles reach the TPU kernel: copied from HBM into three buffers, two ahead of the computation."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mis_kernels.backends.tpu.tiles import KINDS, TpuBlocks
from mis_kernels.target import target

LANES = 128
AHEAD = 2
"""Tiles on their way while one is worked on."""
BUFFERS = AHEAD + 2
Ref = Any
"""A block in VMEM or SMEM, or an array in HBM; Pallas has no public name for its type."""
Scalar = Array | int


def in_hbm(x: Array) -> Array:
    """Let a kernel find an operand in HBM: XLA would copy it to VMEM and back between kernels that read it in parts."""
    return x if target().interpret else pltpu.with_memory_space_constraint(x, pltpu.HBM)


class TileRefs(NamedTuple):
    """Scalars, prefetched to SMEM: the fields of `TpuTiles` and the flat page table."""

    bounds: Ref
    context_id: Ref
    first: Ref
    used: Ref
    contiguous: Ref
    page_table: Ref


class KernelShape(NamedTuple):
    """Static facts of one compilation."""

    blocks: TpuBlocks
    group: int
    head_dim: int
    page_size: int
    pages_per_context: int
    new_tokens: int
    by_lanes: bool
    """Heads lie side by side along the lanes, `[tokens, heads * head_dim]`; else heads first."""
    scale: float
    """Factor of the logits in units of powers of two: the scale times log2(e)."""
    cap: float | None
    """Of the logits in these units; None: there is none."""

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.blocks.tokens * self.group


class Scratch(NamedTuple):
    """Scratch memory: tile buffers, the block's rows, the softmax."""

    k: Ref  # [BUFFERS, keys, head_dim]
    v: Ref  # [BUFFERS, keys, head_dim]
    rows: Ref  # [rows, head_dim]
    anchor: Ref  # [1, rows] float32; what weights are relative to
    weighted: Ref  # [head_dim + TOTAL_ROWS, rows] float32; below the values, the sum of weights
    arrived: Ref  # DMA semaphores [BUFFERS, 2]


class Fetch:
    """Copies tiles from HBM into three buffers in turn, two ahead of the computation; a fourth is for single ones."""

    def __init__(self, tiles: TileRefs, hbm: tuple[Ref, Ref, Ref, Ref], scratch: Scratch, shape: KernelShape) -> None:
        self.tiles, self.shape = tiles, shape
        k_new, v_new, k_pages, v_pages = hbm
        self.streams = ((k_new, k_pages, scratch.k, 0), (v_new, v_pages, scratch.v, 1))
        self.arrived = scratch.arrived

    def part(self, tile: Scalar, number: int = 0) -> Scalar:
        """Return where a part of a tile stands in the list."""
        return tile if self.shape.blocks.parts == 1 else tile * self.shape.blocks.parts + number

    def own_start(self, tile: Scalar) -> Array:
        """First new token in the buffer: the tile's, or less where the array would end."""
        start = jnp.minimum(self.tiles.first[self.part(tile)], self.shape.new_tokens - self.shape.blocks.keys)
        return pl.multiple_of(start, 16)

    def begin(self, head: Scalar, block: Scalar) -> None:
        """Begin to copy the first tiles, if this is the first block of all."""

        @pl.when((head == 0) & (block == 0))
        def _() -> None:
            def start(number: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
                self._start(*at, number)
                return self._after(*at)

            lax.fori_loop(0, AHEAD, start, (jnp.int32(0), jnp.int32(0)))

    def next(self, head: Scalar, tile: Scalar) -> Array:
        """Wait until a tile has arrived, in the order of heads and of the list; return its slot."""
        number = head * self._total + tile
        at = head, tile
        for _ in range(AHEAD):
            at = self._after(*at)
        self._start(*at, lax.rem(number + AHEAD, AHEAD + 1))
        slot = lax.rem(number, AHEAD + 1)
        self._wait(tile, slot)
        return slot

    def now(self, head: Scalar, tile: Scalar) -> int:
        """Copy a tile once more, beside those that are on their way; return its slot."""
        slot = AHEAD + 1
        self._copy(head, tile, slot)
        self._wait(tile, slot)
        return slot

    @property
    def _total(self) -> Scalar:
        return self.tiles.bounds[KINDS * pl.num_programs(1)]

    def _after(self, head: Scalar, tile: Scalar) -> tuple[Array, Array]:
        """Return the head and number of the tile behind one."""
        last = tile + 1 >= self._total
        return jnp.where(last, head + 1, head), jnp.where(last, 0, tile + 1)

    def _start(self, head: Scalar, tile: Scalar, slot: Scalar) -> None:
        """Begin to copy a tile, if there is such a one."""

        @pl.when((head < pl.num_programs(0)) & (self._total > 0))
        def _() -> None:
            self._copy(head, tile, slot)

    def _copy(self, head: Scalar, tile: Scalar, slot: Scalar) -> None:
        """Begin to copy a tile's keys and values."""
        own = self.tiles.context_id[self.part(tile)] < 0

        @pl.when(own)
        def _() -> None:
            for new, _pages, buffer, index in self.streams:
                self._from(self._new(new, head, tile), buffer.at[slot], slot, index).start()

        for number in range(self.shape.blocks.parts):
            self._copy_part(head, own, self.part(tile, number), slot, number)

    def _copy_part(self, head: Scalar, own: Array, part: Scalar, slot: Scalar, number: int) -> None:
        """Begin to copy a part of a tile of cached tokens: in one copy, or page by page."""
        keys, size, run = self.shape.blocks.part_keys, self.shape.page_size, self.tiles.contiguous[part] > 0

        @pl.when(jnp.logical_and(jnp.logical_not(own), run))
        def _() -> None:
            if self.streams[0][1].shape[1] < keys:
                return  # a cache this small has no such run, and the copy would not even trace
            for _new, pages, buffer, index in self.streams:
                source = pages.at[head, pl.ds(self._page(part, 0), keys)]
                self._from(source, self._rows(buffer, slot, number), slot, index).start()

        @pl.when(jnp.logical_not(jnp.logical_or(own, run)))
        def _() -> None:
            def page(at: Array, carry: None) -> None:
                row = pl.multiple_of(number * keys + at * size, size)
                for _new, pages, buffer, index in self.streams:
                    source = pages.at[head, pl.ds(self._page(part, at), size)]
                    self._from(source, buffer.at[slot, pl.ds(row, size)], slot, index).start()

            lax.fori_loop(0, self._pages(part), page, None)

    def _wait(self, tile: Scalar, slot: Scalar) -> None:
        """Wait until a tile has arrived: semaphores count bytes, so one wait may end several copies."""
        own = self.tiles.context_id[self.part(tile)] < 0
        for number in range(self.shape.blocks.parts):
            self._wait_for_part(own, self.part(tile, number), slot, number)

    def _wait_for_part(self, own: Array, part: Scalar, slot: Scalar, number: int) -> None:
        keys, size = self.shape.blocks.part_keys, self.shape.page_size
        whole = own | (self.tiles.used[part] == keys) | (self.tiles.contiguous[part] > 0)

        @pl.when(whole)
        def _() -> None:
            for *_, buffer, index in self.streams:
                rows = self._rows(buffer, slot, number)
                self._from(rows, rows, slot, index).wait()

        @pl.when(jnp.logical_not(whole))
        def _() -> None:
            def page(at: Array, carry: None) -> None:
                rows = pl.ds(pl.multiple_of(number * keys + at * size, size), size)
                for *_, buffer, index in self.streams:
                    self._from(buffer.at[slot, rows], buffer.at[slot, rows], slot, index).wait()

            lax.fori_loop(0, self._pages(part), page, None)

    def _rows(self, buffer: Ref, slot: Scalar, number: int) -> Ref:
        """Return a part of a tile's buffer."""
        keys, parts = self.shape.blocks.part_keys, self.shape.blocks.parts
        return buffer.at[slot] if parts == 1 else buffer.at[slot, pl.ds(number * keys, keys)]

    def _from(self, source: Ref, destination: Ref, slot: Scalar, index: int) -> Any:
        return pltpu.make_async_copy(source, destination, self.arrived.at[slot, index])

    def _pages(self, part: Scalar) -> Array:
        size = self.shape.page_size
        return lax.div(self.tiles.used[part] + size - 1, size)

    def _page(self, part: Scalar, index: Scalar) -> Array:
        """First row of the part's page number `index` in the flattened cache."""
        size = self.shape.page_size
        entry = (
            self.tiles.context_id[part] * self.shape.pages_per_context + lax.div(self.tiles.first[part], size) + index
        )
        return pl.multiple_of(self.tiles.page_table[entry] * size, size)

    def _new(self, new: Ref, head: Scalar, tile: Scalar) -> Ref:
        tokens = pl.ds(self.own_start(tile), self.shape.blocks.keys)
        if self.shape.by_lanes:
            dim = self.shape.head_dim
            return new.at[tokens, pl.ds(pl.multiple_of(head * dim, dim), dim)]
        return new.at[head, tokens]
