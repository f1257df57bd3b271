"""Segments: which new tokens a step computes, and what each of them sees.

A step computes a packed array of new tokens. Each token sees two intervals and nothing else:

* the first `context_len` tokens of its context, read from the paged KV cache, and
* the new tokens from `segment_start` to itself.

A segment whose K/V are written to pages (`paged`: a query, a long item) is read back from there: the
step writes pages before it attends, so such a token's context includes itself and its second
interval is empty. Then a token's bits depend on absolute positions alone, never on how a query was
cut into chunks. A segment that lives for one step only (an item) keeps its K/V among the new tokens.

In a layer whose window slides, a token sees the last `window` positions up to its own, and nothing before them:
both intervals begin later (decision 47).

`mis_kernels.operations.lay_out` turns segment lengths and contexts into these arrays on the host,
without a Python loop over segments. There is no mask array anywhere.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

IntArray = np.ndarray | Array


def ramp(lens: np.ndarray) -> np.ndarray:
    """Return `0 .. n - 1` for every n of `lens`, one after the other, int64."""
    return np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """What the new tokens of a step see; host arrays from `lay_out`, device arrays inside `jit`.

    Attributes:
        context_id: Row of `page_table` that holds the token's context, `[tokens]`.
        context_len: Tokens of that context the token sees, itself included if paged, `[tokens]`.
        segment_start: First new token it sees, `[tokens]`; beyond the token itself, none.
        page_table: Pages of each context in order, `[contexts, pages_per_context]`.
        page_writes: Page that each run of `page_size` new tokens is written to, `[tokens / page_size]`; or that each
            token is written to, at its own position's slot, `[tokens]`. A number past the last page means nowhere.
        window: Positions that a token sees, its own the last, a scalar; None: all. `NO_WINDOW` hides nothing.
    """

    context_id: IntArray
    context_len: IntArray
    segment_start: IntArray
    page_table: IntArray
    page_writes: IntArray
    window: IntArray | None = dataclasses.field(default=None, kw_only=True)

    @property
    def num_tokens(self) -> int:
        """New tokens of the step, padding included."""
        return self.context_id.shape[0]

    @property
    def context_first(self) -> IntArray:
        """First token of its context that each token sees, `[tokens]`; at or after `context_len` it sees none."""
        if self.window is None:
            return self._numbers.zeros_like(self.context_len)
        token = self._numbers.arange(self.num_tokens, dtype=np.int32)
        position = self.context_len + token - self.segment_start
        return self._numbers.maximum(position + 1 - self.window, 0)

    @property
    def own_first(self) -> IntArray:
        """First new token that each token sees, `[tokens]`; beyond the token itself, none."""
        if self.window is None:
            return self.segment_start
        token = self._numbers.arange(self.num_tokens, dtype=np.int32)
        return self._numbers.maximum(self.segment_start, token + 1 - self.window)

    @property
    def _numbers(self) -> Any:
        """NumPy of host arrays, JAX's of device arrays."""
        return jnp if isinstance(self.context_len, jax.Array) else np

    def shift_pages(self, offset: Array | int) -> Self:
        """Return the same segments in a region of the cache that begins `offset` pages later.

        The layers of a model share one cache: layer `i` lives `i * pages_per_layer` pages on.
        """
        return dataclasses.replace(self, page_table=self.page_table + offset, page_writes=self.page_writes + offset)


MIN_TOKENS = 64
"""Steps are padded to multiples of this, except for the backend's smaller sizes, `Backend.few_rows`.

With fewer rows a product on XLA:CPU takes another path.
"""

NO_WINDOW = 2**30
"""A window that is longer than any sequence."""

NOWHERE = 2**30
"""Page number of tokens that are written to no page; no cache has so many."""
