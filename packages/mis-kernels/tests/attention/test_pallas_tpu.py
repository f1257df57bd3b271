"""The TPU kernel, emulated, agrees with the dense reference."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mis_kernels import Segments, lay_out, reference_attention, segment_attention
from mis_kernels.attention.pallas_tpu import pallas_tpu_attention
from mis_kernels.attention.tiling import TpuBlocks

SMALL = TpuBlocks(tokens=128, keys=128, strip=128, key_step=64)


@dataclasses.dataclass(frozen=True)
class Case:
    """A step: `(context, cached tokens, new tokens, paged)` of each segment, and the shapes around it."""

    name: str
    segments: tuple[tuple[int, int, int, bool], ...]
    tokens: int = 256
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 128
    page_size: int = 64
    dtype: str = "float32"
    blocks: TpuBlocks = SMALL
    shuffle: bool = False


def items(context: int, cached: int, *lens: int) -> tuple[tuple[int, int, int, bool], ...]:
    return tuple((context, cached, n, False) for n in lens)


CASES = [
    Case("no context", items(0, 0, 20, 1, 33, 100), kv_heads=1, group=1, head_dim=64, page_size=16),
    Case("context of one token", items(0, 1, 64, 1, 1, 62), tokens=128, kv_heads=8, group=1, head_dim=96, page_size=32),
    Case("context below a page edge", items(0, 127, *[20] * 12), kv_heads=1, group=4, page_size=128, dtype="bfloat16"),
    Case("context on a tile edge", items(0, 128, *[19] * 13), group=3, head_dim=64, shuffle=True),
    Case("context past a tile edge", items(0, 513, 200, 7, 40), group=5, head_dim=96, dtype="bfloat16", shuffle=True),
    Case("long context", items(0, 2000, *[20] * 12), kv_heads=4, group=2, page_size=64),
    Case("long context, tuned blocks", items(0, 2000, *[20] * 25), tokens=512, kv_heads=1, dtype="bfloat16", blocks=TpuBlocks(512, 512, 256, 256)),
    Case("long context, head_dim 256", items(0, 300, *[20] * 6), tokens=128, kv_heads=1, group=6, head_dim=256),
    Case("group of seven", items(0, 200, 3, 50, 60), tokens=128, group=7, head_dim=64, blocks=TpuBlocks(128, 128, 256, 128)),
    Case("group of eight", items(0, 200, 3, 50, 60), tokens=128, group=8, kv_heads=1, dtype="bfloat16"),
    Case("query alone", ((0, 0, 250, True),), group=2),
    Case("query chunk behind cached pages", ((0, 192, 256, True),), group=4, head_dim=64, shuffle=True),
    Case("query and its items", ((0, 0, 128, True), *items(0, 128, 20, 30, 1))),
    Case("several contexts", (*items(0, 300, 40, 9), *items(1, 70, 30), *items(2, 0, 25), *items(1, 70, 100)), dtype="bfloat16"),
    Case("several queries", ((0, 64, 60, True), (1, 0, 64, True), (2, 128, 90, True)), page_size=64, shuffle=True),
    Case("more tokens than whole blocks", items(0, 130, *[30] * 12), tokens=384, blocks=TpuBlocks(256, 128, 256, 64)),
    Case("step smaller than a block", items(0, 130, 20, 30), tokens=64, head_dim=64, group=1),
    Case("segment longer than a tile", items(0, 64, 5, 230, 20), tokens=256, kv_heads=1),
    Case("padding between segments", items(0, 64, 5, 20), tokens=512, kv_heads=1),
    Case("nothing but padding", (), kv_heads=1),
]


def lay_out_case(case: Case) -> tuple[Segments, int]:
    """Lay a case out; paged segments start on page edges, a hole of 3 tokens follows other segments now and then."""
    contexts = max((s[0] for s in case.segments), default=0) + 1
    longest = max((s[1] + (s[2] if s[3] else 0) for s in case.segments), default=0)
    pages_per_context = max(-(-longest // case.page_size), 1)
    pages = np.arange(contexts * pages_per_context, dtype=np.int32)
    if case.shuffle:
        pages = np.random.default_rng(0).permutation(pages).astype(np.int32)
    starts, row = [], 0
    for _, _, n, paged in case.segments:
        row = -(-row // case.page_size) * case.page_size if paged else row
        starts.append(row)
        row += n
    columns = np.array(case.segments, np.int32).reshape(-1, 4).T
    segments = lay_out(
        starts=np.array(starts, np.int32),
        lens=columns[2],
        context_ids=columns[0],
        context_lens=columns[1],
        paged=columns[3].astype(bool),
        page_table=pages.reshape(contexts, -1) + 1,
        page_size=case.page_size,
        tokens=case.tokens,
        blocks=case.blocks,
    )
    return segments, contexts * pages_per_context + 2


def arrays(case: Case, pages: int, segments: Segments, seed: int = 0) -> tuple[jax.Array, ...]:
    """Random inputs; memory and rows that nobody sees hold NaN."""
    random = np.random.default_rng(seed)
    shape = (case.tokens, case.kv_heads, case.head_dim)
    q = random.normal(size=(case.tokens, case.kv_heads * case.group, case.head_dim)) * 3
    k, v = random.normal(size=shape), random.normal(size=shape)
    cache = (case.kv_heads, pages, case.page_size, case.head_dim)
    k_pages, v_pages = np.full(cache, np.nan), np.full(cache, np.nan)
    reach = np.zeros(len(segments.page_table), np.int64)
    np.maximum.at(reach, segments.context_id, segments.context_len)
    for context, length in enumerate(reach):
        position = np.arange(length)
        at = segments.page_table[context, position // case.page_size], position % case.page_size
        for target in (k_pages, v_pages):
            target[:, at[0], at[1]] = random.normal(size=(case.kv_heads, length, case.head_dim))
    live = (segments.context_len > 0) | (segments.segment_start <= np.arange(case.tokens))
    for new in (q, k, v):
        new[~live] = np.nan
    return tuple(jnp.asarray(x, case.dtype) for x in (q, k, v, k_pages, v_pages))


def check(case: Case, interpret: Any) -> None:
    segments, pages = lay_out_case(case)
    inputs = arrays(case, pages, segments)
    scale = case.head_dim**-0.5
    out = np.asarray(pallas_tpu_attention(*inputs, segments, scale=scale, interpret=interpret), np.float32)
    live = (segments.context_len > 0) | (segments.segment_start <= np.arange(case.tokens))
    expected = np.asarray(reference_attention(*(x.astype(jnp.float32) for x in inputs), segments, scale=scale))
    assert np.all(out[~live] == 0)
    tolerance = 1e-5 if case.dtype == "float32" else 1e-2
    np.testing.assert_allclose(out[live], expected[live], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_reference(case: Case) -> None:
    check(case, interpret=True)


def test_contexts_of_forty_thousand_tokens_do_not_overflow() -> None:
    check(Case("", items(0, 40_000, 20, 20), tokens=64, kv_heads=1, group=1, head_dim=64, page_size=512, blocks=TpuBlocks(128, 2048, 128, 1024)), True)


def test_refuses_segments_laid_out_for_xla() -> None:
    segments, pages = lay_out_case(Case("", items(0, 1, 5)))
    case = Case("", items(0, 1, 5))
    inputs = arrays(case, pages, segments)
    other = lay_out(
        **{name: np.zeros(0, np.int32) for name in ("starts", "lens", "context_ids", "context_lens")},
        paged=np.zeros(0, bool),
        page_table=segments.page_table,
        page_size=64,
        tokens=256,
    )
    with pytest.raises(ValueError, match="laid out for another implementation"):
        segment_attention(*inputs, other, scale=1.0, implementation="pallas_tpu")
