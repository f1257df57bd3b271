"""A last layer attends from some rows: what each backend makes of them is what it makes of all, and picks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_cases import CASES, EMULATED, ON_CPU, PAGE, SMALL, Case, Segment, backend_of, in_float32
from mis_kernels import segment_attention
from mis_kernels.backends import Limits
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import build_row_tiles, count_tiles
from mis_kernels.heads import HeadShape
from mis_kernels.target import compiling_for
from mis_testing.bits import assert_bits_equal

LIMITS = Limits(contexts=3, context_tokens=1344, segment_tokens=300)
STEP = Case(
    [*[Segment(n, 0) for n in (20, 7, 150, 1, 33)], Segment(90, 1, paged=True), *[Segment(20, 2)] * 7],
    contexts=(300, 64, 1300),
    tokens=640,
)


def scored(case: Case, count: int) -> np.ndarray:
    """Return the last row of every segment, some rows besides, and none at the end, in any order."""
    _, starts = case.layout("xla")
    last = starts + np.array([segment.length for segment in case.segments]) - 1
    more = np.arange(0, starts[-1], 97)
    rows = np.full(count, -1, np.int32)
    found = np.random.default_rng(1).permutation(np.union1d(last, more))
    rows[: len(found)] = found
    return rows


def attended(name: str, case: Case, rows: np.ndarray, dtype: str, interpret: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return what a backend makes of some rows, and the reference of all."""
    backend = backend_of(name, case, dtype)
    with compiling_for(interpret=interpret):
        arrays = case.arrays(jnp.dtype(dtype), backend)
        segments = backend.lay_out_rows(arrays.pop("segments"), rows, PAGE, LIMITS)
        attend = partial(segment_attention, scale=arrays.pop("scale"))
        options = EMULATED if name == "tpu" else None
        found = jax.jit(attend, compiler_options=options)(
            **arrays, segments=segments, rows=jnp.asarray(np.maximum(rows, 0))
        )
    expected = in_float32({**arrays, "segments": segments, "scale": case.head_dim**-0.5})
    return np.asarray(found, np.float32), expected


@pytest.mark.tpu
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.full), "bfloat16"])
def test_the_kernel_attends_from_rows(dtype: str, interpret: bool) -> None:
    rows = scored(STEP, 256)
    found, expected = attended("tpu", STEP, rows, dtype, interpret)
    live, tolerance = rows >= 0, {"float32": 2e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(found[live], expected[rows[live]], atol=tolerance)
    assert not found[~live].any()
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found[live], expected[rows[live] - 1], atol=tolerance)


@pytest.mark.parametrize("name", ON_CPU)
def test_others_attend_from_all_and_pick(name: str) -> None:
    case = CASES["items behind a short context"]
    rows = scored(case, 64)
    backend = backend_of(name, case, "bfloat16")
    arrays = case.arrays(jnp.dtype("bfloat16"), backend)
    found, _ = attended(name, case, rows, "bfloat16", interpret=False)
    everything = jax.jit(segment_attention, static_argnames="scale")(**arrays)
    assert_bits_equal(found, np.asarray(everything, np.float32)[np.maximum(rows, 0)])


@given(st.data())
def test_any_rows_fit_the_list_and_see_all_that_they_saw(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=12))
    contexts = data.draw(st.lists(st.integers(0, 1344), min_size=3, max_size=3))
    case = Case([Segment(n, data.draw(st.integers(0, 2))) for n in lengths], contexts=contexts)
    segments, _ = case.layout(TpuBackend(HeadShape(1, 1, 128), "bfloat16", SMALL))
    rows = np.array(data.draw(st.lists(st.integers(-1, segments.num_tokens - 1), min_size=1, max_size=300)), np.int32)
    last = build_row_tiles(segments, rows, PAGE, SMALL, LIMITS)
    assert last.facts.shape[1] % SMALL.tokens == 0
    tiles, bounds = last.tiles, last.tiles.bounds
    for block in range(last.facts.shape[1] // SMALL.tokens):
        listed = slice(bounds[4 * block], bounds[4 * block + 4])
        begins, visited = tiles.first[listed], tiles.used[listed]
        keys = {
            (int(context), key)
            for context, first, used in zip(tiles.context_id[listed], begins, visited, strict=True)
            for key in range(first, first + used)
        }
        for row in set(rows[block * SMALL.tokens : (block + 1) * SMALL.tokens].tolist()) - {-1}:
            context = int(segments.context_id[row])
            assert {(context, n) for n in range(segments.context_len[row])} <= keys
            assert {(-1, n) for n in range(segments.segment_start[row], row + 1)} <= keys
    assert count_tiles(tiles)[3] == 0
