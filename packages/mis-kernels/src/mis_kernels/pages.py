"""The paged KV cache's only write: new keys and values into the pages that the step names."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int32, Shaped

from mis_kernels.segments import NOWHERE, Segments
from mis_kernels.storage import to_bits
from mis_kernels.target import platform, target

Ref = Any  # a Pallas reference


def write_pages(
    pages: Shaped[Array, "kv_heads pages page_size cache_head_dim"],
    new: Float[Array, "tokens kv_heads head_dim"],
    segments: Segments,
    *,
    implementation: str | None = None,
) -> Shaped[Array, "kv_heads pages page_size cache_head_dim"]:
    """Write the new tokens of paged segments to their pages.

    Whole pages are written: paged segments begin on a page boundary, and what follows a segment's
    last token in its last page is never seen.

    Args:
        pages: Key or value cache, floats or their bits (see `storage_dtype`); donate it to keep the
            update in place.
        new: Keys or values of the new tokens; zeros fill them up to the cache's width (`cache_head_dim`).
        segments: `page_writes` says where each run of `page_size` tokens goes, if anywhere.
        implementation: `xla` or `pallas_tpu`; default: the best for the platform.

    Raises:
        ValueError: the implementation is unknown.
    """
    name = implementation or ("pallas_tpu" if platform() == "tpu" else "xla")
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: {name!r} is unknown; choose from {', '.join(IMPLEMENTATIONS)}")
    new = jnp.pad(new, ((0, 0), (0, 0), (0, pages.shape[3] - new.shape[2])))
    new = to_bits(new) if pages.dtype == jnp.uint16 else new
    return IMPLEMENTATIONS[name](pages, new, jnp.asarray(segments.page_writes))


def _xla(pages: Array, new: Array, writes: Int32[Array, " runs"]) -> Array:
    kv_heads, _, page_size, width = pages.shape
    runs = new.swapaxes(0, 1).reshape(kv_heads, -1, page_size, width)
    return pages.at[:, writes].set(runs, mode="drop")


def _pallas_tpu(pages: Array, new: Array, writes: Int32[Array, " runs"]) -> Array:
    """Copy each run by DMA, head by head, into the cache it aliases.

    XLA's scatter would need the new rows in another layout first, in every step, whether it writes or not.
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
    )(writes, new.reshape(len(new), -1), pages)


IMPLEMENTATIONS: dict[str, Callable[[Array, Array, Array], Array]] = {"xla": _xla, "pallas_tpu": _pallas_tpu}
