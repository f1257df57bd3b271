"""Steps with dense masks: how long their contexts are compiled, and what memory they may take."""

import dataclasses

import numpy as np

from mis_core.errors import ConfigError, RequestError
from mis_core.requests import ScoreRequest
from mis_core.scheduler.plan import PAGE_SIZE, StepPlan, StepShape
from mis_kernels.backends import Backend
from mis_kernels.backends.reference.dense import DENSE_BYTES, DenseSize

SHORTEST = 32
"""Pages of the shortest context that dense steps are compiled for."""


def context_buckets(pages: int) -> list[int]:
    """Return the lengths of contexts, in pages, that dense steps are compiled for: each four times the one before."""
    return sorted({*(SHORTEST << 2 * n for n in range(16) if SHORTEST << 2 * n < pages), pages})


def with_short_contexts(plan: StepPlan) -> StepPlan:
    """Cut the page tables of a plan to what its longest context needs; dense masks are as wide as they are."""
    used = max(int((each.context_lens + np.where(each.paged, each.lens, 0)).max(initial=1)) for each in plan.shards)
    buckets = context_buckets(plan.shards[0].page_table.shape[1])
    pages = next(pages for pages in buckets if pages * PAGE_SIZE >= used)
    shards = (dataclasses.replace(each, page_table=each.page_table[:, :pages]) for each in plan.shards)
    return dataclasses.replace(plan, shards=tuple(shards))


@dataclasses.dataclass(frozen=True, slots=True)
class DenseMemory:
    """Whether requests may be computed with dense masks, by the memory that these take on each device.

    Attributes:
        shape: Room of a step.
        backend: Who computes it otherwise.
    """

    shape: StepShape
    backend: Backend

    def bytes_for(self, context_tokens: int) -> int:
        """Return the temporary bytes of the largest step behind a context of so many tokens."""
        buckets = context_buckets(self.shape.pages_per_context)
        pages = next(pages for pages in buckets if pages * PAGE_SIZE >= context_tokens)
        return DenseSize(
            self.shape.tokens, pages * PAGE_SIZE, self.backend.heads.group, self.backend.cache_head_dim
        ).bytes

    def check_longest(self) -> None:
        """Refuse an engine of dense masks whose longest context does not fit.

        Raises:
            ConfigError: says how many bytes it takes.
        """
        longest = self.shape.pages_per_context * PAGE_SIZE
        if (needed := self.bytes_for(longest)) > DENSE_BYTES:
            raise ConfigError(
                f"mask_impl dense takes {needed:,} bytes for steps of {self.shape.tokens} tokens after contexts of "
                f"{longest}, but at most {DENSE_BYTES:,} are allowed; lower context_length.",
                "context_length",
            )

    def check(self, request: ScoreRequest) -> None:
        """Refuse a request of dense masks of more than fits.

        Raises:
            RequestError: `invalid_mask_impl`; says how many bytes they take.
        """
        longest = len(request.query) + int(np.diff(request.item_starts).max())
        if (needed := self.bytes_for(longest)) > DENSE_BYTES:
            raise RequestError(
                "invalid_mask_impl",
                f"mask_impl dense takes {needed:,} bytes for {longest} tokens of query and item, but at most "
                f"{DENSE_BYTES:,} are allowed; leave it out, or shorten query and item.",
                "mask_impl",
            )
