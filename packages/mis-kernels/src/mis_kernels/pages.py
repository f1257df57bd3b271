"""The paged KV cache's only write: new keys and values into the pages that the step names."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from mis_kernels.segments import Segments
from mis_kernels.storage import to_bits


def write_pages(
    pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    new: Float[Array, "tokens kv_heads head_dim"],
    segments: Segments,
) -> Shaped[Array, "kv_heads pages page_size head_dim"]:
    """Write the new tokens of paged segments to their pages.

    Whole pages are written: paged segments begin on a page boundary, and what follows a segment's
    last token in its last page is never seen.

    Args:
        pages: Key or value cache, floats or their bits (see `storage_dtype`); donate it to keep the
            update in place.
        new: Keys or values of the new tokens.
        segments: `page_writes` says where each run of `page_size` tokens goes, if anywhere.
    """
    page_size = pages.shape[2]
    new = to_bits(new) if pages.dtype == jnp.uint16 else new
    runs = new.swapaxes(0, 1).reshape(new.shape[1], -1, page_size, new.shape[2])
    return pages.at[:, jnp.asarray(segments.page_writes)].set(runs, mode="drop")
