"""The TPU kernel agrees with the dense reference."""

import numpy as np
import pytest

from mis_kernels import lay_out
from mis_kernels.backends import ANY_HEADS, choose
from mis_kernels.backends.tpu.attention import tpu_attention
from mis_kernels.backends.tpu.tiles import TpuBlocks
from tpu_cases import Case, arrays, check, items, lay_out_case

CASES = [
    Case("no context", items(0, 0, 20, 1, 33, 100), kv_heads=1, group=1, head_dim=64, page_size=16),
    Case("context of one token", items(0, 1, 64, 1, 1, 62), tokens=128, kv_heads=8, group=1, head_dim=96, page_size=32),
    Case("context below a page edge", items(0, 127, *[20] * 12), kv_heads=1, group=4, page_size=128, dtype="bfloat16"),
    Case("context on a tile edge", items(0, 128, *[19] * 13), group=3, head_dim=64, shuffle=True),
    Case("context past a tile edge", items(0, 513, 200, 7, 40), group=5, head_dim=96, dtype="bfloat16", shuffle=True),
    Case("long context", items(0, 2000, *[20] * 12), kv_heads=4, group=2, page_size=64),
    Case(
        "long context, tuned blocks",
        items(0, 2000, *[20] * 25),
        tokens=512,
        kv_heads=1,
        dtype="bfloat16",
        blocks=TpuBlocks(512, 512, 256, 256),
    ),
    Case("long context, head_dim 256", items(0, 300, *[20] * 6), tokens=128, kv_heads=1, group=6, head_dim=256),
    Case(
        "group of seven",
        items(0, 200, 3, 50, 60),
        tokens=128,
        group=7,
        head_dim=64,
        blocks=TpuBlocks(128, 128, 256, 128),
    ),
    Case("group of eight", items(0, 200, 3, 50, 60), tokens=128, group=8, kv_heads=1, dtype="bfloat16"),
    Case("query alone", ((0, 0, 250, True),), group=2),
    Case("query chunk behind cached pages", ((0, 192, 256, True),), group=4, head_dim=64, shuffle=True),
    Case("query and its items", ((0, 0, 128, True), *items(0, 128, 20, 30, 1))),
    Case(
        "several contexts",
        (*items(0, 300, 40, 9), *items(1, 70, 30), *items(2, 0, 25), *items(1, 70, 100)),
        dtype="bfloat16",
    ),
    Case("several queries", ((0, 64, 60, True), (1, 0, 64, True), (2, 128, 90, True)), shuffle=True, tile_capacity=16),
    Case("more tokens than whole blocks", items(0, 130, *[30] * 12), tokens=384, blocks=TpuBlocks(256, 128, 256, 64)),
    Case("step smaller than a block", items(0, 130, 20, 30), tokens=64, head_dim=64, group=1),
    Case("segment longer than a tile", items(0, 64, 5, 230, 20), tokens=256, kv_heads=1),
    Case("padding between segments", items(0, 64, 5, 20), tokens=512, kv_heads=1),
    Case("nothing but padding", (), contexts=3, pages_per_context=4, tile_capacity=16),  # compiled with several queries
]


# Other widths and groups alone, of which the grid has more, and what the catalogue of all backends has, too.
FULL = ("query and its items", "several contexts", "padding between segments",
        "no context", "context of one token", "context below a page edge", "context on a tile edge",
        "long context, head_dim 256", "group of seven", "group of eight", "long context, tuned blocks",
        "segment longer than a tile", "long context", "query alone", "context past a tile edge",
        "query chunk behind cached pages")  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.full if case.name in FULL else (), id=case.name) for case in CASES],
)
@pytest.mark.tpu
def test_agrees_with_the_reference(case: Case, interpret: bool) -> None:
    check(case, interpret)


@pytest.mark.tpu
def test_contexts_of_forty_thousand_tokens_do_not_overflow(interpret: bool) -> None:
    check(
        Case(
            "",
            items(0, 40_000, 20, 20),
            tokens=64,
            kv_heads=1,
            group=1,
            head_dim=64,
            page_size=512,
            blocks=TpuBlocks(128, 2048, 128, 1024),
        ),
        interpret,
    )


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
        backend=choose(ANY_HEADS, "float32", "xla"),
    )
    with pytest.raises(ValueError, match="were not laid out for tpu"):
        tpu_attention(*inputs, other, scale=1.0)
