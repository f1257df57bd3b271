"""Mixed steps on TPUs: rows of many contexts lie side by side, and a tile of cached tokens has parts of several."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import SMALL
from mis_kernels.backends.laid_out import StepLimits
from mis_kernels.backends.tpu.tiles import KINDS, TpuBlocks, block_sizes, build_tpu_tiles, tile_capacity
from mis_kernels.heads import HEAD_SHAPES
from mis_testing.bits import assert_bits_equal
from tpu_cases import Case, arrays, assert_agrees, attend, check, items, lay_out_case

BLOCKS = SMALL.for_mixed_steps(1)
WIDE = TpuBlocks(tokens=256, keys=384, strip=256, key_step=128).for_mixed_steps(1)
FULL, LIMITED, MASKED, NEAR = range(KINDS)


def callers(*sizes: tuple[int, int, int], first: int = 0, paged: bool = True) -> tuple[tuple[int, int, int, bool], ...]:
    """Some callers' queries, `(tokens, items, tokens of an item)` each, then all their items."""
    queries = [(first + number, 0, query, True) for number, (query, _, _) in enumerate(sizes)] if paged else []
    behind = [items(first + number, query, *[n] * count) for number, (query, count, n) in enumerate(sizes)]
    return (*queries, *(item for each in behind for item in each))


# Of steps that are compiled once for all that have them: emulated kernels take long to compile.
ROOM: dict[str, Any] = {"tokens": 640, "contexts": 8, "pages_per_context": 5, "tile_capacity": 32, "blocks": BLOCKS}
CASES = [
    Case("one item each", callers(*[(60, 1, 15)] * 5), **ROOM),
    Case("queries that are known", callers(*[(40 + n, 1, 15) for n in range(8)], paged=False), **ROOM),
    Case("a context of several tiles among short ones", callers((300, 2, 20), (10, 3, 9), (70, 1, 30)), **ROOM),
    Case("items longer than a block", callers((40, 2, 150), (100, 1, 200)), tokens=768, blocks=BLOCKS),
    Case("near tiles reach behind a block", callers((64, 12, 45)), tokens=768, blocks=WIDE, group=1),
    Case("one context alone in its blocks", callers((256, 12, 20)), tokens=512, dtype="bfloat16", blocks=BLOCKS),
    Case("scattered pages", callers((130, 3, 20), (200, 3, 33)), tokens=640, shuffle=True, blocks=BLOCKS),
]
CASES = [dataclasses.replace(case, blocks=BLOCKS) if case.blocks == SMALL else case for case in CASES]
PER_COMMIT = CASES[0], CASES[2], CASES[4]  # every kind of tile


def nightly(cases: list[Case]) -> list[Any]:
    """Return the cases, those that are not for every commit marked."""
    return [pytest.param(case, id=case.name, marks=() if case in PER_COMMIT else pytest.mark.full) for case in cases]


def kinds(tiles: Any) -> set[int]:
    return set(np.repeat(np.arange(len(tiles.bounds) - 1) % KINDS, np.diff(tiles.bounds)).tolist())


@pytest.mark.tpu
@pytest.mark.parametrize("case", nightly(CASES))
def test_agrees_with_the_reference(case: Case, interpret: bool) -> None:
    check(case, interpret)


def test_the_cases_have_every_kind_of_tile() -> None:
    found = [kinds(lay_out_case(case)[0].tiles) for case in PER_COMMIT]
    assert set.union(*found) == {FULL, LIMITED, MASKED, NEAR}


@pytest.mark.parametrize("case", [pytest.param(CASES[2], marks=pytest.mark.full), CASES[4]], ids=lambda case: case.name)
def test_no_races_and_nothing_uninitialised(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    emulated = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    check(dataclasses.replace(case, kv_heads=1, group=1), emulated)
    assert "RACE DETECTED" not in capsys.readouterr().out


@pytest.mark.tpu
def test_peaked_rows_match_where_contexts_share_a_tile(interpret: bool) -> None:
    case = CASES[1]
    segments, pages = lay_out_case(case)
    q, *others = arrays(case, pages, segments)
    peaked = (q * 40, *others)
    assert_agrees(attend(peaked, segments, case.scale, interpret), peaked, segments, case.scale)


@pytest.mark.tpu
@pytest.mark.parametrize(
    "spoilt", [*(pytest.param(each, marks=pytest.mark.full) for each in (3.0, float("inf"))), float("nan")]
)
def test_bits_do_not_depend_on_what_neighbours_hold(spoilt: float, interpret: bool) -> None:
    """Another caller's new tokens and pages, in whose tile a part is ours."""
    case = dataclasses.replace(CASES[1], dtype="bfloat16")
    segments, pages = lay_out_case(case)
    q, k, v, *caches = arrays(case, pages, segments)
    mine = np.flatnonzero(segments.context_id == 3)
    theirs = np.setdiff1d(np.arange(case.tokens), mine)
    others = np.delete(segments.page_table, 3, axis=0).reshape(-1)
    other = [x.at[theirs].set(spoilt) for x in (q, k, v)] + [x.at[:, others].set(spoilt) for x in caches]
    before, after = (attend(given, segments, case.scale, interpret) for given in ((q, k, v, *caches), other))
    assert_bits_equal(after[mine], before[mine])
    assert not np.array_equal(after[theirs], before[theirs])


@pytest.mark.tpu
def test_rows_in_pages_have_the_same_bits_in_both_kinds_of_step(interpret: bool) -> None:
    """So a query's keys and values are the same, whichever step computes them."""
    room = ROOM | {"dtype": "bfloat16"}
    mine, beside = (0, 0, 300, True), callers((70, 1, 9), (40, 1, 20), first=1)
    cases = [
        Case("", (mine,), **room | {"blocks": SMALL}),
        Case("", (mine,), **room),
        Case("", (mine, *beside), **room),
    ]
    laid_out = [lay_out_case(case) for case in cases]
    given = list(arrays(cases[2], laid_out[2][1], laid_out[2][0]))
    given = [jnp.nan_to_num(x) for x in given]
    alone, mixed, crowded = (attend(given, segments, cases[0].scale, interpret)[:300] for segments, _ in laid_out)
    assert_bits_equal(mixed, alone)
    assert_bits_equal(crowded, alone)


def test_short_contexts_share_a_tile() -> None:
    """Of 8 contexts of one part each, 4 tiles; where the list is too short, it says so."""
    case = Case("", callers(*[(40, 1, 15)] * 8, paged=False), tokens=128, blocks=BLOCKS)
    segments, _ = lay_out_case(case)
    context_tiles = segments.tiles.context_id.reshape(-1, BLOCKS.parts)[:, 0] >= 0
    assert (context_tiles.sum(), BLOCKS.parts) == (4, 2)
    with pytest.raises(ValueError, match="tile_capacity"):
        build_tpu_tiles(segments, case.page_size, BLOCKS, 4)


@pytest.mark.parametrize("chip", ["v5e", "v6e", "v7x"])
@pytest.mark.parametrize("model", HEAD_SHAPES)
def test_a_part_is_a_product(model: str, chip: str) -> None:
    """Then what is added up, and in which order, is as in other steps."""
    heads = HEAD_SHAPES[model]
    blocks = block_sizes(chip=chip, **heads._asdict())
    mixed = blocks.for_mixed_steps(heads.group)
    assert (mixed.part_keys, mixed.key_step, mixed.keys) == (blocks.key_step, blocks.key_step, blocks.keys)
    assert mixed.has_near
    assert mixed.tokens <= blocks.tokens


def test_tile_capacity_counts_the_budget_and_long_items() -> None:
    limits = StepLimits(contexts=256, context_tokens=1024, segment_tokens=1024, context_tiles=100)
    blocks = TpuBlocks(256, 512, 256, 256, parts=2, reach=128)
    assert tile_capacity(4096, limits, blocks) == (100 + 16) // 2 + 16 * 3
    assert tile_capacity(4096, limits._replace(segment_tokens=1), blocks) == (100 + 16) // 2 + 16
