"""What `lay_out` writes down, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_cases import PAGE, Case, Segment
from mis_kernels import Segments, lay_out
from mis_kernels.backends import ANY_HEADS, StepLimits, choose
from mis_kernels.backends.xla.tiles import (
    CONTEXT_TILE,
    OWN_TILE,
    ROW_BLOCK,
    SHARED,
    WIDTHS,
    build_tiles,
    own_block,
    tile_capacity,
)
from mis_kernels.segments import NOWHERE


def arguments(**changes):
    base = {
        "starts": np.array([0, 5], np.int32),
        "lens": np.array([5, 3], np.int32),
        "context_ids": np.zeros(2, np.int32),
        "context_lens": np.full(2, 70, np.int32),
        "paged": np.zeros(2, bool),
        "page_table": np.array([[4, 9]], np.int32),
        "page_size": PAGE,
        "tokens": 64,
        "backend": choose(ANY_HEADS, "float32", "xla"),
    }
    return base | changes


def test_an_item_sees_its_context_and_its_own_tokens() -> None:
    segments = lay_out(**arguments())
    assert segments.context_len[:9].tolist() == [70] * 8 + [0]
    assert segments.segment_start[:9].tolist() == [0] * 5 + [5] * 3 + [9]
    assert (segments.page_writes == NOWHERE).all()


def test_a_paged_segment_sees_itself_through_its_pages() -> None:
    segments = lay_out(
        **arguments(starts=np.array([0], np.int32), lens=np.array([60], np.int32), context_ids=np.zeros(1, np.int32),
                    context_lens=np.array([64], np.int32), paged=np.ones(1, bool))
    )  # fmt: skip
    assert segments.context_len[:61].tolist() == [*range(65, 125), 0]
    assert (segments.segment_start > np.arange(64)).all()
    assert segments.page_writes.tolist() == [9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lens": np.array([5, 0], np.int32)}, "at least one token"),
        ({"starts": np.array([0, 4], np.int32)}, "overlap"),
        ({"starts": np.array([0, 62], np.int32)}, "leave the packed array of 64"),
        ({"paged": np.array([False, True])}, "multiple of the page size"),
        ({"context_ids": np.array([0, 1], np.int32)}, "page table of 1 contexts"),
        ({"context_lens": np.array([70, 129], np.int32)}, "needs more than 2 pages"),
        ({"window": 0}, "window: must be at least 1, not 0"),
        ({"tile_capacity": (0, 1)}, "capacity: the step needs 1 visits of context tiles"),
        ({"tile_capacity": (1, 0)}, "capacity: the step needs 1 own tiles"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lay_out(**arguments(**changes))


segments_strategy = st.lists(st.tuples(st.integers(1, 700), st.integers(0, 2), st.booleans()), min_size=1, max_size=30)


@given(segments_strategy, st.sampled_from([None, 1, 63, 64, 130, 513, 600]))
def test_tiles_cover_exactly_what_rows_see(drawn, window: int | None) -> None:
    """Every cached token a row sees is in a tile of its block, and every new one among its block's own keys."""
    contexts = (0, 129, 1500)
    chosen = [Segment(n, context=c, paged=p and c == 0 and i < 2) for i, (n, c, p) in enumerate(drawn)]
    case = Case(chosen, contexts, window=window)
    segments, _ = case.layout()
    tiles, tokens = segments.tiles, segments.num_tokens
    visited = [[] for _ in tiles.order]
    assert tiles.starts[-1] <= len(tiles.used)
    for visit in range(tiles.starts[-1]):
        listed = [*zip(*(x[visit] for x in (tiles.context_id, tiles.index, tiles.used)), strict=True)]
        first = len(listed) * (np.searchsorted(tiles.starts, visit, "right") - 1)
        most = max(used for *_, used in listed)
        width = min(width for width in WIDTHS if width >= most)
        is_shared = width == CONTEXT_TILE and len({tile[:2] for tile in listed if tile[2]}) == 1
        assert tiles.kind[visit] == (SHARED if is_shared else WIDTHS.index(width))
        for block, tile in zip(tiles.order[first : first + len(listed)], listed, strict=True):
            if tile[2]:
                visited[block].append(tile)
    assert sorted(tiles.order) == list(range(tokens // ROW_BLOCK))
    for block, found in enumerate(visited):
        rows = slice(block * ROW_BLOCK, (block + 1) * ROW_BLOCK)
        wanted = []
        for context in range(3):
            mine = segments.context_id[rows] == context
            begins, ends = segments.context_first[rows][mine], segments.context_len[rows][mine]
            seen = ends[begins < ends].max(initial=0)
            first = begins[begins < ends].min(initial=seen) // CONTEXT_TILE
            wanted += [
                (context, at, min(seen - at * CONTEXT_TILE, CONTEXT_TILE))
                for at in range(first, -(-seen // CONTEXT_TILE))
            ]
        assert found == wanted
    own_size = own_block(tokens)
    for block in range(tokens // own_size):
        keys = tiles.own_keys[:, block].reshape(-1)
        rows = np.arange(block * own_size, (block + 1) * own_size)
        wanted = {k for row in rows for k in range(segments.own_first[row], row + 1)}
        others = {k for row in rows for k in range(segments.segment_start[row], row + 1)} - wanted
        found = keys[keys >= 0]
        assert wanted <= set(found.tolist()) <= wanted | others
        assert len(found) == len(set(found.tolist()))
        for tile in keys.reshape(-1, OWN_TILE):  # keys before a window lie beside others in their tile, or nowhere
            assert wanted & set(tile.tolist()) or (tile < 0).all()


@given(st.integers(1, 16), st.integers(1, 40), st.sampled_from([100, 1500, 9000]), st.integers(0, 1 << 30))
def test_lists_hold_every_step_within_its_budget(blocks: int, contexts: int, longest: int, seed: int) -> None:
    random, tokens = np.random.default_rng(seed), blocks * ROW_BLOCK
    context_id = np.repeat(random.integers(0, contexts, tokens), random.integers(1, 90, tokens))[:tokens]
    context_len = random.integers(0, longest + 1, contexts)[context_id] * (random.random(tokens) < 0.9)
    none = np.arange(1, tokens + 1)
    table = np.zeros((contexts, -(-longest // PAGE)), np.int32)
    tiles = build_tiles(Segments(context_id, context_len, none, table, np.full(blocks, NOWHERE)))
    limits = StepLimits(contexts, longest, 256, context_tiles=int((tiles.used > 0).sum()))
    assert tiles.starts[-1] <= tile_capacity(tokens, limits)[0]


@given(segments_strategy)
def test_own_keys_are_aligned_to_powers_of_two(drawn) -> None:
    case = Case([Segment(n) for n, _, _ in drawn])
    segments, starts = case.layout()
    keys = segments.tiles.own_keys.swapaxes(0, 1).reshape(-1)
    for at in np.flatnonzero(np.isin(keys, starts)):
        run = 1
        while at + run < len(keys) and keys[at + run] == keys[at] + run and keys[at + run] not in starts:
            run += 1
        size = min(1 << (run - 1).bit_length(), OWN_TILE)
        assert at % size == 0
