"""Mask generators: one meaning in every form, and the same attention from each of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_cases import PAGE, Case, Segment, write_pages
from mis_kernels import segment_attention, visibility
from mis_kernels.backends import ANY_HEADS, StepLimits, choose
from mis_kernels.masks import (
    dense_mask,
    intervals_of_delimiters,
    intervals_of_lengths,
    intervals_of_segments,
    positions_of_delimiters,
    positions_of_lengths,
)
from mis_testing.tolerances import ATTENTION

lengths = st.lists(st.integers(0, 9), max_size=8)
ATTEND = {name: jax.jit(partial(segment_attention, scale=0.25, backend=name)) for name in ("reference", "xla")}


def slow_mask(prefix: int, lens: list[int], rows: int) -> np.ndarray:
    """The rule, token by token."""
    owner = [-1] * prefix + [item for item, n in enumerate(lens) for _ in range(n)]
    mask = np.zeros((rows, rows), bool)
    for row, mine in enumerate(owner):
        for key in range(row + 1):
            mask[row, key] = owner[key] in (-1, mine)
    return mask


@given(prefix=st.integers(0, 12), lens=lengths, padding=st.integers(0, 5))
def test_lengths_give_the_rule(prefix: int, lens: list[int], padding: int) -> None:
    rows = prefix + sum(lens) + padding
    intervals = intervals_of_lengths(prefix, np.array(lens, np.int32), rows)
    np.testing.assert_array_equal(dense_mask(intervals, rows), slow_mask(prefix, lens, rows))


@given(
    query=st.integers(1, 6),
    lens=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    delimiter=st.sampled_from([0, 99]),
)
def test_delimiters_give_the_rule(query: int, lens: list[int], delimiter: int) -> None:
    """The first delimiter belongs to the prefix, every other one to the item that it ends; id 0 is legal."""
    tokens = [7] * query + [delimiter]
    for n in lens:
        tokens += [8] * n + [delimiter]
    intervals = intervals_of_delimiters(np.array(tokens, np.int32), delimiter)
    expected = slow_mask(query + 1, [n + 1 for n in lens], len(tokens))
    np.testing.assert_array_equal(dense_mask(intervals, len(tokens)), expected)


def test_positions_restart_with_every_item() -> None:
    tokens = np.array([10, 11, 99, 21, 22, 99, 31, 99], np.int32)
    assert positions_of_delimiters(tokens, 99).tolist() == [0, 1, 2, 3, 4, 2, 3, 2]
    assert positions_of_lengths(3, np.array([2, 0, 1], np.int32)).tolist() == [0, 1, 2, 3, 4, 3]


@pytest.mark.parametrize(("prefix", "lens"), [(0, [3, 0, 2]), (5, []), (9, [4] * 7), (12, [9, 1, 0, 0, 8])])
def test_the_dense_form_is_the_same_on_a_device(prefix: int, lens: list[int]) -> None:
    size = prefix + sum(lens) + 1
    intervals = intervals_of_lengths(prefix, np.array(lens, np.int32), size)
    on_device = jax.jit(partial(dense_mask, keys=size))(jax.tree.map(jnp.asarray, intervals))
    np.testing.assert_array_equal(np.asarray(on_device), dense_mask(intervals, size))


@settings(max_examples=10, deadline=None)
@given(
    query=st.integers(1, 150),
    lens=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    backend=st.sampled_from(["reference", "xla"]),
)
def test_dense_segment_and_tile_forms_give_the_same_attention(query: int, lens: list[int], backend: str) -> None:
    """A dense mask over the packed sequence against segments behind a paged query in the same step."""
    # Steps of one size, so that a backend is compiled for each number of pages only.
    segments = [Segment(query, paged=True), *(Segment(n, context_len=query) for n in lens)]
    case = Case(segments, (0,), 512, head_dim=16, limits=StepLimits(1, 150, 150))
    segments, starts = case.layout()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((segments.num_tokens, heads, 16), np.float32) for heads in (4, 2, 2))
    empty = np.full((2, case.page_table().size + 3, PAGE, 16), np.nan, np.float32)
    pages = [write_pages(empty, new, segments, choose(ANY_HEADS, "float32", "xla")) for new in (k, v)]
    found = ATTEND[backend](q, k, v, *pages, segments)

    rows = np.concatenate([start + np.arange(n) for start, n in zip(starts, [query, *lens], strict=True)])
    mask = dense_mask(intervals_of_lengths(query, np.array(lens, np.int32)), len(rows))
    logits = np.einsum("qhd,khd->hqk", q[rows], np.repeat(k[rows], 2, 1)) * 0.25
    weights = scipy.special.softmax(np.where(mask, logits, -np.inf), axis=-1)
    expected = np.einsum("hqk,khd->qhd", weights, np.repeat(v[rows], 2, 1))
    np.testing.assert_allclose(np.asarray(found)[rows], expected, rtol=0, atol=ATTENTION["float32"])


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 1)), min_size=1, max_size=6), st.booleans())
def test_a_steps_intervals_are_the_references_visibility(drawn: list[tuple[int, int]], paged: bool) -> None:
    case = Case([Segment(n, context=c, paged=paged and i == 0) for i, (n, c) in enumerate(drawn)], (128, 64))
    segments, _ = case.layout()
    expected = np.concatenate([np.asarray(part) for part in visibility(segments, PAGE)], axis=1)
    np.testing.assert_array_equal(dense_mask(intervals_of_segments(segments, PAGE), expected.shape[1]), expected)


def test_intervals_stay_small_where_a_mask_would_not() -> None:
    """512 bytes for each of 12,000 x 12,000 elements was a published out-of-memory; here it is 16 bytes a row."""
    intervals = intervals_of_lengths(2000, np.full(500, 20, np.int32))
    assert sum(part.nbytes for part in jax.tree.leaves(intervals)) == 16 * 12_000


def test_what_is_not_of_this_form_is_named() -> None:
    for tokens, message in (
        ([1, 2, 3], "found 0"),
        ([9, 1, 9], "query .* is empty"),
        ([1, 9, 2, 9, 3], "does not end"),
    ):
        with pytest.raises(ValueError, match=message):
            intervals_of_delimiters(np.array(tokens, np.int32), 9)
    with pytest.raises(ValueError, match="rows: 4 are fewer"):
        intervals_of_lengths(3, np.array([2], np.int32), rows=4)
    with pytest.raises(ValueError, match="not be negative"):
        intervals_of_lengths(-1, np.array([2], np.int32))
