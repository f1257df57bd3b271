"""Pages in plain XLA: a scatter of whole pages, or of rows."""

from jaxtyping import Array


def write_pages(pages: Array, new: Array, writes: Array) -> Array:
    """Write runs of `page_size` new tokens, `[tokens, kv_heads, head_dim]`, to the pages `writes`, `[runs]`."""
    kv_heads, _, page_size, width = pages.shape
    runs = new.swapaxes(0, 1).reshape(kv_heads, -1, page_size, width)
    return pages.at[:, writes].set(runs, mode="drop")


def write_rows(pages: Array, new: Array, writes: Array, slots: Array) -> Array:
    """Write each new token, `[tokens, kv_heads, head_dim]`, to a slot of its page, both `[tokens]`."""
    return pages.at[:, writes, slots].set(new.swapaxes(0, 1), mode="drop")
