"""The GPU kernel: bits of a row, one launch, what its programs visit. Parity is in `test_backends.py`."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import PAGE, UNOPTIMISED, Case, Segment, backend_of, in_float32
from mis_kernels import segment_attention
from mis_kernels.backends import LaidOut, StepLimits
from mis_kernels.backends.gpu.attention import gpu_attention
from mis_kernels.backends.gpu.backend import GpuBackend
from mis_kernels.backends.gpu.tiles import KEYS, GpuBlocks, GpuTiles
from mis_kernels.heads import HeadShape, device_head_shapes
from mis_kernels.segments import MIN_TOKENS
from mis_testing.tolerances import ATTENTION

Device = Callable[[], AbstractContextManager]

SHAPE: dict[str, Any] = {"contexts": (300, 0, 70), "group": 2, "head_dim": 32, "limits": StepLimits(3, 640, 300)}
CHOSEN = Segment(9)
NEIGHBOURS = {
    "a shorter one": ([Segment(1)], []),
    "many": ([Segment(n) for n in (3, 64, 5, 31)], [Segment(n) for n in (2, 17)]),
    "longer than a block": ([Segment(200)], [Segment(90)]),
    "of other contexts": ([Segment(30, context=2), Segment(7, context=1)], [Segment(25, context=2)]),
    "a query": ([Segment(100, context=1, paged=True)], []),
}


_attend = jax.jit(
    segment_attention,
    static_argnames=("scale", "backend"),
    compiler_options=None if jax.default_backend() == "gpu" else UNOPTIMISED,
)


def attend(arrays: dict[str, Any], device: Device) -> np.ndarray:
    with device():
        return np.asarray(_attend(**arrays))


def rows(case: Case, index: int, dtype: str, device: Device) -> np.ndarray:
    """Return what a segment of a case gets."""
    backend = backend_of("gpu", case, dtype)
    with device():
        start = case.layout(backend)[1][index]
        arrays = case.arrays(jnp.dtype(dtype), backend)
    return attend(arrays, device)[start : start + case.segments[index].length]


@pytest.mark.gpu
@pytest.mark.parametrize("beside", NEIGHBOURS)
def test_a_segments_bits_do_not_depend_on_other_segments(beside: str, gpu: Device) -> None:
    before, after = NEIGHBOURS[beside]
    case = Case([*before, CHOSEN, *after], tokens=512, **SHAPE)
    alone = Case([CHOSEN], tokens=512, **SHAPE)
    np.testing.assert_array_equal(
        rows(case, len(before), "bfloat16", gpu).view(np.uint16), rows(alone, 0, "bfloat16", gpu).view(np.uint16)
    )


@pytest.mark.gpu
def test_the_comparison_of_bits_notices_one_token_of_context(gpu: Device) -> None:
    case, shorter = (Case([Segment(9, context_len=n)], tokens=512, **SHAPE) for n in (300, 299))
    assert (rows(case, 0, "bfloat16", gpu) != rows(shorter, 0, "bfloat16", gpu)).any()


@pytest.mark.gpu
def test_a_querys_bits_do_not_depend_on_how_it_is_chunked(gpu: Device) -> None:
    whole = Case([Segment(640, paged=True)], group=1, head_dim=32)
    backend = backend_of("gpu", whole, "bfloat16")
    with gpu():
        arrays = whole.arrays(jnp.bfloat16, backend)
        later = Case([Segment(128, paged=True)], contexts=(512,), group=1, head_dim=32).layout(backend)[0]
    table = {**vars(later), "page_table": whole.page_table()}
    part = {**arrays, **{name: arrays[name][512:640] for name in "qkv"}, "segments": LaidOut(**table)}
    np.testing.assert_array_equal(attend(arrays, gpu)[512:640].view(np.uint16), attend(part, gpu)[:128].view(np.uint16))


@pytest.mark.gpu
def test_rows_outside_segments_are_zero(gpu: Device) -> None:
    case = Case([Segment(5)], contexts=(30,), tokens=128, head_dim=32)
    with gpu():
        arrays = case.arrays(jnp.bfloat16, backend_of("gpu", case, "bfloat16"))
    assert not attend(arrays, gpu)[5:].any()


@pytest.mark.gpu
def test_nan_in_rows_of_padding_stays_there(gpu: Device) -> None:
    case = Case([Segment(5), Segment(70)], contexts=(30,), tokens=256, gap=9, head_dim=32)
    with gpu():
        arrays = case.arrays(jnp.bfloat16, backend_of("gpu", case, "bfloat16"))
    segments = arrays["segments"]
    padding = np.asarray(segments.segment_start) > np.arange(256)
    spoilt = {name: jnp.where(padding[:, None, None], jnp.nan, arrays[name]) for name in "qkv"}
    found = attend({**arrays, **spoilt}, gpu)[~padding]
    limit = ATTENTION["bfloat16"]
    np.testing.assert_allclose(found.astype(np.float32), in_float32(arrays)[~padding], atol=limit, rtol=limit)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [128, 256])
def test_rows_that_skip_a_blocks_first_tile_match_the_reference(head_dim: int, gpu: Device) -> None:
    case = Case([Segment(50), Segment(14)], contexts=(30,), tokens=64, kv_heads=1, group=1, head_dim=head_dim)
    with gpu():
        arrays = case.arrays(jnp.bfloat16, backend_of("gpu", case, "bfloat16"))
    found, limit = attend(arrays, gpu), ATTENTION["bfloat16"]
    np.testing.assert_allclose(found.astype(np.float32), in_float32(arrays), atol=limit, rtol=limit)


STEPS = {
    "one tile": Case([Segment(3)]),
    "many tiles": Case([Segment(20)] * 60, contexts=(3000,)),
    "many contexts": Case([Segment(4, context=c) for c in range(6)], contexts=(1, 63, 64, 65, 600, 0)),
}
CALLERS = Case([Segment(1 + c % 9, context=c) for c in range(100)], contexts=[40 + c for c in range(100)], head_dim=32)


@pytest.mark.gpu
def test_a_hundred_callers_within_the_budget_match_the_reference(gpu: Device) -> None:
    """The list of visits is as long as the plan's budget says, which is less than blocks times contexts."""
    limits = StepLimits(256, 192, 256, context_tiles=256)
    case = dataclasses.replace(CALLERS, tokens=512, limits=limits)
    backend = backend_of("gpu", case, "bfloat16")
    with gpu():
        arrays = case.arrays(jnp.bfloat16, backend)
    tiles = arrays["segments"].tiles
    assert len(tiles.context_id) == backend.tile_capacity(512, limits)[0] == 256
    assert tiles.starts[-1] > 100
    found, limit = attend(arrays, gpu), ATTENTION["bfloat16"]
    live = np.asarray(arrays["segments"].segment_start) <= np.arange(512)
    np.testing.assert_allclose(found[live].astype(np.float32), in_float32(arrays)[live], atol=limit, rtol=limit)


def test_a_gpu_has_256_contexts_and_a_budget_of_tiles() -> None:
    backend = GpuBackend.create(HeadShape(16, 8, 128), "bfloat16")
    assert (backend.contexts, backend.context_tile, backend.alignment) == (256, (32, KEYS), 1)


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_a_step_is_one_launch_whatever_it_holds(case: Case, gpu: Device) -> None:
    with gpu():
        arrays = case.arrays(jnp.bfloat16, backend_of("gpu", case, "bfloat16"))
        static = {name: arrays.pop(name) for name in ("scale", "backend")}
        made = jax.make_jaxpr(lambda arrays: segment_attention(**arrays, **static))(arrays)
    assert [equation.primitive.name for equation in _equations(made.jaxpr)] == ["pallas_call"]


def _equations(jaxpr: Any) -> Any:
    """Yield all equations outside kernels."""
    for equation in jaxpr.eqns:
        yield equation
        inner = equation.params.get("jaxpr")
        if inner is not None and equation.primitive.name != "pallas_call":
            yield from _equations(getattr(inner, "jaxpr", inner))


def tiles_of(case: Case) -> GpuTiles:
    tiles = case.layout(backend_of("gpu", case, "bfloat16"))[0].tiles
    assert isinstance(tiles, GpuTiles)
    assert tiles.blocks == GpuBlocks(tokens=32, members=2)
    return tiles


def test_a_block_visits_contexts_as_far_as_its_rows_see() -> None:
    segments = [Segment(20, context_len=100), Segment(20, context=1), Segment(10, context_len=7)]
    tiles = tiles_of(Case(segments, contexts=(300, 70), tokens=64, kv_heads=1, group=2, head_dim=128))
    assert tiles.starts.tolist() == [0, 2, 4]
    assert list(zip(tiles.context_id.tolist(), tiles.reach.tolist(), strict=True)) == [
        (0, 100),
        (1, 70),
        (0, 7),
        (1, 70),
    ]
    assert not tiles.shared.any()  # some row of each block is of another context
    # 20 and 12 keys as 32 and 16 of one tile; then 20 keys of a segment that began before, and 10.
    assert tiles.own_ranks.tolist() == [1, 1]


def test_tiles_that_all_rows_of_a_block_see_whole_are_known() -> None:
    segments = [Segment(20, context_len=200), Segment(12, context_len=130), Segment(200)]
    tiles = tiles_of(Case(segments, contexts=(300,), tokens=256, kv_heads=1, group=2, head_dim=128))
    # The least context of the first block is 130 keys; of the last one, some rows belong to no segment.
    assert tiles.shared.tolist() == [130 // KEYS, *[300 // KEYS] * 6, 0]
    assert tiles.own_shared.tolist() == [0, 0, 0, 1, 1, 2, 2, 0]
    assert tiles.own_ranks.tolist() == [1, 1, 1, 2, 2, 3, 3, 4]


def test_blocks_divide_every_step_and_hold_every_group() -> None:
    for heads in device_head_shapes():
        blocks = GpuBlocks.of(heads)
        assert MIN_TOKENS % blocks.tokens == 0
        assert heads.group <= blocks.members < 2 * heads.group
        assert blocks.rows in (16, 32, 64)
    assert GpuBackend.create(HeadShape(16, 8, 128), "bfloat16").for_decoding().blocks == GpuBlocks(1, 2)
    assert PAGE % KEYS == 0


def test_refuses_segments_laid_out_for_another(gpu: Device) -> None:
    arrays = Case([Segment(5)], contexts=(30,)).arrays(jnp.bfloat16, "xla")
    del arrays["backend"]
    with gpu(), pytest.raises(ValueError, match="were not laid out for gpu"):
        gpu_attention(**arrays)
