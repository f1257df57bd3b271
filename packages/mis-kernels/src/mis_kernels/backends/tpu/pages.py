"""Pages on TPUs: runs of new tokens are copied by DMA into the cache that they alias."""

from collections.abc import Callable
from typing import Any

import jax
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
