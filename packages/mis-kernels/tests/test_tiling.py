"""Tile lists of the TPU kernel cover exactly what rows see, and say truthfully how much masking a tile needs."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from mis_kernels import Segments, lay_out
from mis_kernels.backends import ANY_HEADS
from mis_kernels.backends.laid_out import StepLimits
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import (
    CHIPS,
    KINDS,
    REACH,
    TpuBlocks,
    block_sizes,
    build_tpu_tiles,
    tile_capacity,
    vmem_bytes,
)
from mis_kernels.heads import HEAD_SHAPES, device_head_shapes

BLOCKS = TpuBlocks(tokens=32, keys=64, strip=32, key_step=32)
WITH_NEAR = TpuBlocks(tokens=256, keys=256, strip=128, key_step=64)
MIXED = BLOCKS.for_mixed_steps(1)
REACHING = TpuBlocks(tokens=128, keys=256, strip=128, key_step=64).for_mixed_steps(1)
PAGE = 16
TOKENS = 256


@st.composite
def steps(draw: st.DrawFn) -> dict:
    """Segments one after another, with gaps, over a few contexts."""
    segments, row = [], 0
    for _ in range(draw(st.integers(0, 8))):
        paged = draw(st.booleans())
        row = -(-row // PAGE) * PAGE if paged else row + draw(st.integers(0, 3))
        length = draw(st.integers(1, 70) if paged else st.integers(1, 70) | st.integers(120, 180))
        if row + length > TOKENS:
            break
        cached = draw(st.integers(0, 150))
        segments.append((row, length, draw(st.integers(0, 2)), cached // PAGE * PAGE if paged else cached, paged))
        row += length
    columns = np.array(segments, np.int32).reshape(-1, 5).T
    table = np.random.default_rng(draw(st.integers(0, 3))).permutation(48).astype(np.int32).reshape(3, 16)
    if draw(st.booleans()):
        table = np.arange(48, dtype=np.int32).reshape(3, 16)
    names = ("starts", "lens", "context_ids", "context_lens")
    return {**dict(zip(names, columns, strict=False)), "paged": columns[4].astype(bool), "page_table": table}


@pytest.mark.parametrize("blocks", [BLOCKS, WITH_NEAR, MIXED, REACHING], ids=["small", "near", "mixed", "reaching"])
@settings(max_examples=200, deadline=None)
@given(step=steps(), window=st.sampled_from([None, 1, 16, 17, 64, 100]))
def test_tiles_visit_each_visible_key_once(step: dict, window: int | None, blocks: TpuBlocks) -> None:
    backend = TpuBackend(ANY_HEADS, "float32", blocks)
    segments = lay_out(**step, page_size=PAGE, tokens=TOKENS, backend=backend, window=window)
    tiles, token = segments.tiles, np.arange(TOKENS)
    live = (segments.context_len > 0) | (segments.segment_start <= token)
    seen_context, seen_own = np.zeros((TOKENS, 256), int), np.zeros((TOKENS, TOKENS + 256), int)
    for block in range(TOKENS // blocks.tokens):
        rows = np.flatnonzero(live & (token // blocks.tokens == block))
        for kind in range(KINDS):
            for tile in range(tiles.bounds[KINDS * block + kind], tiles.bounds[KINDS * block + kind + 1]):
                part = tile * blocks.parts
                context, first, used = tiles.context_id[part], tiles.first[part], tiles.used[part]
                assert 1 <= used <= blocks.keys
                if context < 0:
                    assert kind in (2, 3)
                    assert first % 16 == 0
                    near = np.zeros_like(seen_own[rows])
                    near[:, first : first + used] = 1
                    if kind == 3:
                        assert first == block * blocks.tokens - blocks.reach
                        before = rows // REACH * REACH - np.arange(near.shape[1])[:, None]
                        near *= ((before <= REACH) & (before > -REACH)).T
                    seen_own[rows] += near
                    continue
                total = int(tiles.used[part : part + blocks.parts].sum())
                assert kind != 0 or total == blocks.keys
                if kind < 2:
                    assert np.all(segments.context_id[rows] == context)
                    assert np.all(segments.context_len[rows] >= first + total)
                    assert np.all(segments.context_first[rows] <= first)
                if kind == 1:
                    assert np.all(segments.context_len[rows] == first + total)
                for number in range(part, part + blocks.parts):
                    context, first, used = tiles.context_id[number], tiles.first[number], tiles.used[number]
                    mine = rows[segments.context_id[rows] == context]
                    if len(mine) and used:
                        assert first + blocks.part_keys > segments.context_first[mine].min()
                    seen_context[mine, first : first + used] += 1
                    page = segments.page_table[context, first // PAGE : -(-(first + used) // PAGE)]
                    whole = len(page) == blocks.part_keys // PAGE
                    assert tiles.contiguous[number] == (whole and bool(np.all(np.diff(page) == 1)))
    position = np.arange(256)
    visible = (position >= segments.context_first[:, None]) & (position < segments.context_len[:, None])
    assert np.all(seen_context[visible] == 1)
    own = np.arange(TOKENS + 256)
    visible = (own >= segments.own_first[:, None]) & (own <= token[:, None])
    assert np.all(seen_own[visible] == 1)


def rows(count: int, context_len: int) -> Segments:
    """Rows that all see the first tokens of one context, and no new token."""
    zeros, table = np.zeros(count, np.int32), np.arange(64, dtype=np.int32)[None]
    return Segments(zeros, zeros + context_len, np.arange(count, dtype=np.int32) + 1, table, zeros[:1])


def test_a_list_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="tile_capacity: the step needs 32 tiles, but only 31 fit"):
        build_tpu_tiles(rows(64, 1000), PAGE, BLOCKS, 31)
    tiles = build_tpu_tiles(rows(64, 1000), PAGE, BLOCKS, tile_capacity(64, StepLimits(1, 1000, 1), BLOCKS))
    assert tiles.bounds[-1] == 32
    assert len(tiles.first) >= 32


def test_a_page_size_that_does_not_divide_a_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size: 24 does not divide"):
        build_tpu_tiles(rows(32, 0), 24, BLOCKS)


@pytest.mark.parametrize("chip", CHIPS)
def test_block_sizes_of_every_model_fit_the_chip(chip: str) -> None:
    for heads in device_head_shapes():
        for dtype, size in (("bfloat16", 2), ("float32", 4)):
            blocks = block_sizes(chip=chip, **heads._asdict(), dtype=dtype)
            assert blocks.keys % blocks.key_step == 0
            assert blocks.tokens % 128 == 0
            assert vmem_bytes(blocks, group=heads.group, head_dim=heads.head_dim, itemsize=size) < 32 * 2**20


def test_unknown_chips_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="chip: 'v4' is unknown; choose from v5e, v6e, v7x"):
        block_sizes(chip="v4", heads=16, kv_heads=8, head_dim=128)


def test_more_devices_than_kv_heads_copy_them() -> None:
    assert HEAD_SHAPES["qwen2.5-1.5b"].on_device(8) == (2, 1, 128)
    assert HEAD_SHAPES["qwen2.5-7b"].on_device(8) == (4, 1, 128)
    assert HEAD_SHAPES["qwen2.5-7b"].spread(8) == (32, 8, 128)
    with pytest.raises(ValueError, match="3 devices and 8 KV heads do not divide each other"):
        HEAD_SHAPES["qwen3-8b"].on_device(3)
    assert HEAD_SHAPES["qwen3-8b"].on_device(4) == (8, 2, 128)
