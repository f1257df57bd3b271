"""What is compiled for GPUs: the operation on steps that differ in all that must not change how it is launched."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from mis_kernels.aot.targets import LONGEST_ITEM, PAGE_SIZE, SLOTS
from mis_kernels.backends import LaidOut, StepLimits, choose
from mis_kernels.heads import HeadShape
from mis_kernels.operations import lay_out, segment_attention
from mis_kernels.segments import NOWHERE
from mis_kernels.target import compiling_for

PAGES = 65_536
"""Of a cache as large as a GPU's: 8 GiB with 8 heads of 128. Above 4 GiB addresses take 64 bits, and more registers."""
ITEM = 20
DTYPE = "bfloat16"


class AttentionStep(NamedTuple):
    """A step in which items lie behind contexts, or in which each token has its own.

    Attributes:
        name: For people.
        tokens: New tokens.
        contexts: Contexts, of equally many items.
        context: Tokens of each.
        decodes: Whether it is a step of single tokens.
        cap: Of the logits; None: there is none.
    """

    name: str
    tokens: int
    contexts: int
    context: int
    decodes: bool = False
    cap: float | None = None


STEPS = (
    AttentionStep("items", 2048, 1, 2000),
    AttentionStep("decoding", SLOTS, SLOTS, 8000, decodes=True),
)
CAPPED = AttentionStep("capped items", 2048, 1, 2000, cap=50.0)
GROWTH = (
    AttentionStep("one tile", 64, 1, 60),
    AttentionStep("more tokens", 8192, 1, 2000),
    AttentionStep("more contexts", 2048, 102, 2000),
    AttentionStep("longer contexts", 2048, 8, 8000),
)
"""All that a step may have more of."""


def laid_out(step: AttentionStep, heads: HeadShape) -> LaidOut:
    """Lay a step out for the backend that fits what code is made for, its lists as long as they must be."""
    backend = choose(heads, DTYPE)
    pages = -(-step.context // PAGE_SIZE)
    limits = StepLimits(step.contexts, pages * PAGE_SIZE, LONGEST_ITEM, step.decodes)
    backend = backend.for_decoding() if step.decodes else backend
    length = 1 if step.decodes else ITEM
    count = step.tokens // length
    contexts = np.arange(count, dtype=np.int32) * step.contexts // count
    return lay_out(
        starts=np.arange(count, dtype=np.int32) * length,
        lens=np.full(count, length, np.int32),
        context_ids=contexts.astype(np.int32),
        context_lens=np.full(count, step.context - length, np.int32),
        paged=np.full(count, step.decodes),
        page_table=np.arange(step.contexts * pages, dtype=np.int32).reshape(step.contexts, pages) % PAGES,
        page_size=PAGE_SIZE,
        tokens=step.tokens,
        backend=backend,
        tile_capacity=backend.tile_capacity(step.tokens, limits),
        page_writes=np.full(step.tokens, NOWHERE, np.int32) if step.decodes else None,
    )


def compile_attention(
    step: AttentionStep, heads: HeadShape, chip: str, on: jax.sharding.Sharding
) -> jax.stages.Compiled:
    """Compile the operation for a chip."""

    def attend(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut) -> Array:
        return segment_attention(q, k, v, k_pages, v_pages, segments, scale=heads.head_dim**-0.5, cap=step.cap)

    with compiling_for(chip):
        segments = laid_out(step, heads)
        shape = step.tokens, heads.heads, heads.head_dim
        new = step.tokens, heads.kv_heads, heads.head_dim
        cache = heads.kv_heads, PAGES, PAGE_SIZE, heads.head_dim
        floats = [jax.ShapeDtypeStruct(each, DTYPE, sharding=on) for each in (shape, new, new, cache, cache)]
        described: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), segments)
        return jax.jit(attend).lower(*floats, described).compile()
