"""Pages on TPUs: new tokens are copied by DMA into the cache that they alias, in runs or one by one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from mis_kernels.backends.tpu.fetch import Ref, in_hbm
from mis_kernels.segments import NOWHERE
from mis_kernels.target import target


def write_pages(pages: Array, new: Array, writes: Array) -> Array:
    """Copy each run by DMA, head by head, into the cache it aliases.

    XLA's scatter would need the new rows in another order first, in every step, whether it writes or not.
    """
    kv_heads, _, page_size, width = pages.shape

    def kernel(writes: Ref, rows: Ref, _: Ref, pages: Ref, done: Ref) -> None:
        def copies(run: Array) -> list[Any]:
            here = rows.at[pl.ds(run * page_size, page_size)]
            return [
                pltpu.make_async_copy(here.at[:, pl.ds(head * width, width)], pages.at[head, writes[run]], done)
                for head in range(kv_heads)
            ]

        def each(act: Callable[[Any], None]) -> None:
            def one(run: Array, carry: None) -> None:
                @pl.when(writes[run] < NOWHERE)
                def _() -> None:
                    for copy in copies(run):
                        act(copy)

            lax.fori_loop(0, len(new) // page_size, one, None)

        each(lambda started: started.start())  # all under way before the first is waited for
        each(lambda started: started.wait())

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(pages.shape, pages.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        input_output_aliases={2: 0},
        interpret=target().interpret,
        name="write_pages",
    )(writes, in_hbm(new.reshape(len(new), -1)), pages)


def write_rows(pages: Array, new: Array, writes: Array, slots: Array) -> Array:
    """Put each new token, `[tokens, kv_heads, head_dim]`, into a slot of its page, both `[tokens]`.

    Memory is copied in tiles of several rows. So the tile of each token is fetched, all of them at once, changed in one
    row, and copied back. No two tokens of a step are written to one tile: a page that is written has one owner.
    """
    kv_heads, _, _, width = pages.shape
    tile = 32 // pages.dtype.itemsize  # a power of two: remainders are bits

    def kernel(writes: Ref, slots: Ref, rows: Ref, _: Ref, pages: Ref, tiles: Ref, done: Ref) -> None:
        def each(act: Callable[[Array], None]) -> None:
            def one(row: Array, carry: None) -> None:
                @pl.when(writes[row] < NOWHERE)
                def _() -> None:
                    act(row)

            lax.fori_loop(0, len(new), one, None)

        def there(row: Array) -> Any:
            return pages.at[:, writes[row], pl.ds(pl.multiple_of(slots[row] & -tile, tile), tile)]

        def fetch(row: Array) -> Any:
            return pltpu.make_async_copy(there(row), tiles.at[row], done)

        def store(row: Array) -> Any:
            return pltpu.make_async_copy(tiles.at[row], there(row), done)

        def change(row: Array) -> None:
            old = tiles[row].astype(jnp.float32)
            is_new = lax.broadcasted_iota(jnp.int32, old.shape, 1) == (slots[row] & (tile - 1))
            tiles[row] = jnp.where(is_new, rows[row].astype(jnp.float32), old).astype(tiles.dtype)

        each(lambda row: fetch(row).start())  # all under way before the first is waited for
        each(lambda row: fetch(row).wait())
        each(change)
        each(lambda row: store(row).start())
        each(lambda row: store(row).wait())

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(pages.shape, pages.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[pl.BlockSpec((len(new), kv_heads, 1, width), lambda *_: (0, 0, 0, 0)), anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.VMEM((len(new), kv_heads, tile, width), pages.dtype), pltpu.SemaphoreType.DMA],
        ),
        input_output_aliases={3: 0},
        interpret=target().interpret,
        name="write_rows",
    )(writes, slots, new[:, :, None], pages)
