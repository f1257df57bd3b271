"""Each kind of tile of the TPU kernel by itself, and what must not change a bit of what it computes.

All steps have the same shapes, so one compilation serves them; `test_pallas_tpu.py` has other shapes.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mis_kernels import Segments
from mis_kernels.backends.tpu.tiles import KINDS, TpuBlocks
from mis_testing.bits import assert_bits_equal
from tpu_cases import Case, arrays, assert_agrees, attend, items, lay_out_case

pytestmark = pytest.mark.tpu

SHAPES = {"tokens": 256, "kv_heads": 2, "dtype": "bfloat16", "contexts": 2, "pages_per_context": 8, "tile_capacity": 16}
BLOCKS = TpuBlocks(tokens=128, keys=128, strip=128, key_step=128)
FULL, LIMITED, MASKED, NEAR = range(KINDS)
NEW = slice(0, 3)  # q, k and v among the inputs


def case(*segments: tuple[int, int, int, bool], shuffle: bool = True, **others: Any) -> Case:
    return Case("", segments, **{**SHAPES, "blocks": BLOCKS, **others}, shuffle=shuffle)


def step(*segments: tuple[int, int, int, bool], shuffle: bool = True, **others: Any) -> tuple[list, Segments, float]:
    """The kernel's inputs for some segments."""
    chosen = case(*segments, shuffle=shuffle, **others)
    laid_out, pages = lay_out_case(chosen)
    return list(arrays(chosen, pages, laid_out)), laid_out, chosen.scale


def context_tiles(segments: Segments) -> list[tuple[int, int]]:
    """Kind and visible keys of every tile of cached keys, in the kernel's order."""
    tiles = segments.tiles
    return [(kind, int(tiles.used[n])) for n, kind in enumerate(kinds(segments)) if tiles.context_id[n] >= 0]


def own_tiles(segments: Segments) -> list[int]:
    """Kind of every tile of new tokens, in the kernel's order."""
    return [kind for n, kind in enumerate(kinds(segments)) if segments.tiles.context_id[n] < 0]


def kinds(segments: Segments) -> list[int]:
    bounds = segments.tiles.bounds
    return np.repeat(np.arange(len(bounds) - 1) % KINDS, np.diff(bounds)).tolist()


def agrees(given: tuple[list, Segments, float], interpret: bool) -> None:
    inputs, segments, scale = given
    assert_agrees(attend(inputs, segments, scale, interpret), inputs, segments, scale)


def test_full_tiles(interpret: bool) -> None:
    given = step(*items(0, 384, 40, 60))
    assert context_tiles(given[1]) == [(FULL, 128)] * 3
    agrees(given, interpret)


def test_a_limited_tile_with_nan_behind_its_end(interpret: bool) -> None:
    given = step(*items(0, 100, 40, 60))
    assert context_tiles(given[1]) == [(LIMITED, 100)]
    agrees(given, interpret)


def test_a_limited_tile_of_one_key(interpret: bool) -> None:
    given = step(*items(0, 257, 40, 60))
    assert context_tiles(given[1]) == [(FULL, 128), (FULL, 128), (LIMITED, 1)]
    agrees(given, interpret)


def test_near_tiles_of_new_tokens_alone(interpret: bool) -> None:
    given = step(*items(0, 0, 20, 1, 33, 70, 100))
    assert context_tiles(given[1]) == []
    assert own_tiles(given[1]) == [NEAR, MASKED]  # the last item begins in the first block
    agrees(given, interpret)


@pytest.mark.parametrize("group", [*(pytest.param(each, marks=pytest.mark.full) for each in (1, 2)), 3])
@pytest.mark.parametrize(
    ("lengths", "kind"),
    [((20,) * 25, NEAR), ((250, 6, 128, 128), NEAR), ((100, 156, 255), NEAR), ((1, 257, 100), MASKED)],
    ids=["short", "to the edge", "over the edge", "too long"],
)
def test_near_tiles_in_parts(lengths: tuple[int, ...], kind: int, group: int, interpret: bool) -> None:
    """Rows see the part of a block that they are in, and the one before."""
    blocks = TpuBlocks(tokens=384, keys=512, strip=256, key_step=256)
    given = step(*items(0, 70, *lengths), blocks=blocks, tokens=768, group=group)
    assert own_tiles(given[1])[0] == kind
    agrees(given, interpret)


def test_masked_tiles_where_two_contexts_share_a_block(interpret: bool) -> None:
    given = step(*items(0, 130, 20), *items(1, 70, 30))
    assert {kind for kind, _ in context_tiles(given[1])} == {MASKED}
    agrees(given, interpret)


def test_masked_tiles_where_segments_see_parts_of_one_context(interpret: bool) -> None:
    given = step(*items(0, 300, 20), *items(0, 129, 30), *items(0, 1, 5))
    assert context_tiles(given[1]) == [(MASKED, 128), (MASKED, 128), (MASKED, 44)]
    agrees(given, interpret)


def test_a_querys_own_diagonal(interpret: bool) -> None:
    agrees(step((0, 0, 250, True)), interpret)


def test_a_querys_later_chunk(interpret: bool) -> None:
    given = step((0, 192, 256, True))
    assert {kind for kind, _ in context_tiles(given[1])} == {FULL, MASKED}
    agrees(given, interpret)


def test_a_query_and_its_items_in_one_step(interpret: bool) -> None:
    agrees(step((0, 0, 128, True), *items(0, 128, 20, 30, 1)), interpret)


def test_a_segment_cut_by_blocks_and_tiles(interpret: bool) -> None:
    agrees(step(*items(0, 64, 5, 230, 20)), interpret)


def test_new_tokens_that_end_inside_a_tile(interpret: bool) -> None:
    """The last tile of new tokens would reach beyond them and is moved back."""
    given = step(*items(0, 64, 100, 150))
    first = given[1].tiles.first[given[1].tiles.context_id < 0]
    assert first.max() > SHAPES["tokens"] - 128
    agrees(given, interpret)


def test_a_step_of_padding_alone_gives_zeros(interpret: bool) -> None:
    inputs, segments, scale = step()
    assert not attend(inputs, segments, scale, interpret).any()


def test_a_block_of_padding_after_a_full_one(interpret: bool) -> None:
    given = step(*items(0, 200, 60, 68))
    assert np.diff(given[1].tiles.bounds)[KINDS:].sum() == 0
    agrees(given, interpret)


def test_a_row_that_sees_one_key_gives_its_value(interpret: bool) -> None:
    inputs, segments, scale = step(*items(0, 0, *[1] * 40))
    found = attend(inputs, segments, scale, interpret)[:40]
    assert_bits_equal(found, np.repeat(np.asarray(inputs[2])[:40], 2, axis=1))


@pytest.mark.parametrize("factor", [1e-3, 30.0], ids=["flat", "peaked"])
def test_flat_and_peaked_weights(factor: float, interpret: bool) -> None:
    inputs, segments, scale = step(*items(0, 300, 40, 60))
    agrees(([inputs[0] * factor, *inputs[1:]], segments, scale), interpret)


def test_the_comparison_notices_one_context_token_too_many(interpret: bool) -> None:
    inputs, segments, scale = step(*items(0, 100, 40))
    _, shorter, _ = step(*items(0, 99, 40))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_agrees(attend(inputs, shorter, scale, interpret), inputs, segments, scale)


def test_bits_do_not_depend_on_where_pages_lie(interpret: bool) -> None:
    """Consecutive pages come in one copy of a tile, scattered ones in one copy each."""
    inputs, scattered, scale = step(*items(0, 384, 40), *items(1, 300, 60))
    _, consecutive, _ = step(*items(0, 384, 40), *items(1, 300, 60), shuffle=False)
    assert (scattered.tiles.contiguous.any(), consecutive.tiles.contiguous.any()) == (False, True)
    moved = [np.full_like(np.asarray(cache), np.nan) for cache in inputs[3:]]
    for new, cache in zip(moved, inputs[3:], strict=True):
        new[:, consecutive.page_table] = np.asarray(cache)[:, scattered.page_table]
    together = attend([*inputs[NEW], *map(jnp.asarray, moved)], consecutive, scale, interpret)
    assert_bits_equal(together, attend(inputs, scattered, scale, interpret))


def test_bits_do_not_depend_on_memory_that_nobody_sees(interpret: bool) -> None:
    inputs, segments, scale = step(*items(0, 100, 40), *items(1, 190, 60))
    cleared = [jnp.nan_to_num(x) for x in inputs]
    assert not all(bool(jnp.isfinite(x).all()) for x in inputs)
    assert_bits_equal(attend(cleared, segments, scale, interpret), attend(inputs, segments, scale, interpret))


@pytest.mark.parametrize("spoilt", [3.0, float("inf"), float("nan")])
def test_bits_do_not_depend_on_a_neighbours_tokens(spoilt: float, interpret: bool) -> None:
    """Whatever stands in its place: another item, or one that overflowed."""
    inputs, segments, scale = step(*items(0, 100, 40, 30, 50))
    other = [x.at[40:70].set(spoilt) for x in inputs[NEW]] + inputs[3:]
    mine = [*range(40), *range(70, 120)]
    before, after = (attend(given, segments, scale, interpret) for given in (inputs, other))
    assert_bits_equal(after[mine], before[mine])
    assert not np.array_equal(after[40:70], before[40:70])


def test_bits_do_not_depend_on_another_context(interpret: bool) -> None:
    inputs, segments, scale = step(*items(0, 130, 40), *items(1, 130, 60))
    theirs = segments.page_table[1]
    other = inputs[:3] + [cache.at[:, theirs].multiply(-2) for cache in inputs[3:]]
    before, after = (attend(given, segments, scale, interpret) for given in (inputs, other))
    assert_bits_equal(after[:40], before[:40])
    assert not np.array_equal(after[40:100], before[40:100])


def test_a_cache_wider_than_the_heads_is_read(interpret: bool) -> None:
    """Heads of 64 in rows of 128, as an engine on a TPU keeps them."""
    narrow = dataclasses.replace(case(*items(0, 300, 40, 60)), head_dim=64)
    segments, pages = lay_out_case(narrow)
    inputs = arrays(narrow, pages, segments)
    wide = [jnp.pad(cache, ((0, 0), (0, 0), (0, 0), (0, 64))) for cache in inputs[3:]]
    assert_agrees(attend([*inputs[NEW], *wide], segments, narrow.scale, interpret), inputs, segments, narrow.scale)
