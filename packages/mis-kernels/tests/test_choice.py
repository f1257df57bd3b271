"""Which backend fits what, what each says of its steps and weights, and that its tile lists are long enough."""

import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from kernel_cases import SMALL
from mis_kernels import lay_out
from mis_kernels.backends import ANY_HEADS, Backend, StepLimits, choose, explain, fastest_dtype
from mis_kernels.backends.gpu import attention
from mis_kernels.backends.gpu.backend import GpuBackend
from mis_kernels.backends.native import library
from mis_kernels.backends.native.backend import NativeBackend, NativeInt8Backend
from mis_kernels.backends.native.packed import pack
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.xla.backend import XlaBackend, XlaCpuBackend
from mis_kernels.heads import HEAD_SHAPES, HeadShape
from mis_kernels.target import CUDA_CAPABILITIES, compiling_for
from mis_kernels.weights import weight_of

PAGE = 64
LIMITS = StepLimits(contexts=4, context_tokens=1280, segment_tokens=256)
BACKENDS = [
    XlaCpuBackend(ANY_HEADS, "float32"),
    TpuBackend(ANY_HEADS, "float32", SMALL),
    TpuBackend(ANY_HEADS, "float32", SMALL).for_mixed_steps(),
    NativeBackend(ANY_HEADS, "bfloat16"),
    GpuBackend.create(HeadShape(14, 2, 64), "bfloat16"),
]


@pytest.mark.parametrize(
    ("head_dim", "dtype", "lacking", "chosen"),
    [
        (64, "bfloat16", None, "native"),
        (1024, "bfloat16", None, "native"),
        (48, "bfloat16", None, "native_products"),
        (1056, "bfloat16", None, "native_products"),
        (64, "float32", None, "native"),
        (64, "float32", "needs a CPU with avx2", "xla"),
        (48, "float32", None, "xla"),
        (64, "bfloat16", "needs a CPU with avx512_bf16", "xla"),
    ],
)
def test_the_first_that_fits_is_chosen(
    head_dim: int, dtype: str, lacking: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("why_not", "why_not_float32"):
        monkeypatch.setattr(library, name, lambda: lacking)
    assert choose(HeadShape(4, 2, head_dim), dtype).name == chosen


def test_reasons_of_all_that_do_not_fit_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "why_not", lambda: "needs a CPU with avx512_bf16")
    lacking = "native needs a CPU with avx512_bf16; native_products needs a CPU with avx512_bf16"
    lacking += "; native computes float32, not bfloat16"
    assert explain(ANY_HEADS, "bfloat16") == f"xla; tpu runs on tpu only; gpu runs on gpu only; {lacking}"
    with compiling_for("v6e"):
        assert explain(ANY_HEADS, "bfloat16") == "tpu"
        with pytest.raises(ValueError, match=r"^backend: native runs on cpu only; native runs on cpu only$"):
            choose(ANY_HEADS, "bfloat16", "native")


def test_a_gpu_gets_its_kernel_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CUDA_CAPABILITIES, "t4", 7.5)
    for chip in ("h100", "l4"):
        with compiling_for(chip):
            assert explain(HeadShape(16, 8, 128), "bfloat16") == "gpu; tpu runs on tpu only"
            assert "gpu computes bfloat16, not float32" in explain(ANY_HEADS, "float32")
            assert "gpu takes heads of up to 256 elements, not 320" in explain(HeadShape(4, 2, 320), "bfloat16")
            assert fastest_dtype()[0] == "bfloat16"
    with compiling_for("t4"):
        chosen, *reasons = explain(ANY_HEADS, "bfloat16").split("; ")
        assert chosen == "xla"
        assert "gpu needs an NVIDIA GPU of compute capability 8.0 or later" in reasons
    monkeypatch.setattr(attention, "_LOWERING", "jax.experimental.pallas.triton_is_gone")
    with compiling_for("h100"):
        reasons = "tpu runs on tpu only; gpu needs a JAX whose Pallas is lowered through Triton"
        assert explain(ANY_HEADS, "bfloat16").startswith(f"xla; {reasons}")


def test_other_devices_do_not_need_the_gpus_lowering() -> None:
    check = "import sys; import mis_kernels; assert 'jax.experimental.pallas.triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(
    ("lacking", "kind"), [(None, NativeInt8Backend), ("needs a CPU with avx512_vnni", XlaCpuBackend)]
)
def test_what_computes_int8_natively_is_plain_xla_otherwise(
    lacking: str | None, kind: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "why_not_int8", lambda: lacking)
    monkeypatch.setattr(library, "why_not_float32", lambda: "needs a CPU with avx2")
    assert type(choose(ANY_HEADS, "float32")) is kind
    assert explain(ANY_HEADS, "float32").startswith("xla; ")
    assert "; native computes bfloat16, not float32; " in explain(ANY_HEADS, "float32")
    assert "vnni" not in explain(ANY_HEADS, "float32")


def test_devices_have_their_sizes_and_types() -> None:
    cpu, accelerator, tpu = (kind(HeadShape(2, 1, 96), "bfloat16") for kind in (XlaCpuBackend, XlaBackend, _tpu))
    assert [each.storage_dtype.name for each in (cpu, accelerator, tpu)] == ["uint16", "bfloat16", "bfloat16"]
    assert [each.cache_head_dim for each in (cpu, accelerator, tpu)] == [96, 96, 128]
    assert [each.normalised_rows for each in (cpu, accelerator, tpu)] == [128, 256, 256]
    assert XlaCpuBackend(ANY_HEADS, "float32").storage_dtype == np.float32
    with compiling_for("v6e"):
        assert (choose(HeadShape(1, 1, 130), "bfloat16").cache_head_dim, fastest_dtype()[0]) == (256, "bfloat16")


def _tpu(heads: HeadShape, dtype: str) -> TpuBackend:
    with compiling_for("v6e"):
        return TpuBackend.create(heads, dtype)


@pytest.mark.parametrize(
    ("cut", "packed"),
    [(P(None, None, "t"), P(None, "t", None)), (P(None, "t"), P(None, None, "t")), (P(), P(None, None, None))],
)
def test_packed_weights_are_cut_like_plain_ones(cut: P, packed: P) -> None:
    """What each of two devices has of the tiles is what it would pack of its own part."""
    backend = NativeBackend(ANY_HEADS, "bfloat16")
    weight = np.random.default_rng(0).integers(0, 2**16, (3, 128, 64)).astype(np.uint16)
    stored = backend.pack(weight.copy())
    assert weight_of(stored).partition(cut).tiles == packed
    assert weight_of(weight).partition(cut) is cut
    axis = [number for number, name in enumerate(cut) if name]
    for axis_of_tiles in [number for number, name in enumerate(packed) if name]:
        parts = np.split(weight, 2, axis[0]), np.split(stored.tiles, 2, axis_of_tiles)
        for part, tiles in zip(*parts, strict=True):
            np.testing.assert_array_equal(backend.pack(part.copy()).tiles, tiles)


@pytest.mark.parametrize("shape", [(8, 256, 512), (8, 2, 256, 256)])
def test_a_stack_is_packed_in_its_own_memory(shape: tuple[int, ...]) -> None:
    weight = np.random.default_rng(0).integers(0, 2**16, shape).astype(np.uint16)
    expected = np.stack([pack(layer) for layer in weight])
    tracemalloc.start()
    try:
        stored = NativeBackend(ANY_HEADS, "bfloat16").pack(weight)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(stored.tiles, expected)
    assert np.shares_memory(stored.tiles, weight)
    assert most < 3 * weight[0].nbytes


def test_a_plain_layer_is_a_slice_and_a_packed_one_an_index() -> None:
    backend = NativeBackend(ANY_HEADS, "bfloat16")
    weight = np.arange(3 * 64 * 32, dtype=np.uint16).reshape(3, 64, 32)
    stored = backend.pack(weight.copy())
    assert stored.at_layer(jnp.int32(1)).tiles is stored.tiles
    found = weight_of(jnp.asarray(weight)).at_layer(jnp.int32(1)).values
    np.testing.assert_array_equal(np.asarray(found).view(np.uint16), weight[1])
    assert [backend.packs(64, 96, gate_bias=bias) for bias in (False, True)] == [True, False]
    assert not backend.packs(64, 48, gate_bias=False)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: f"{backend.name} {backend.alignment}")
@given(data=st.data())
def test_every_step_within_the_limits_fits(backend: Backend, data: st.DataObject) -> None:
    """Segments of different contexts keep apart as the backend asks, as the scheduler has them do."""
    tokens, row, columns = data.draw(st.sampled_from([64, 512, 1024, 1536])), 0, []
    for context in range(LIMITS.contexts):
        row = -(-row // max(backend.alignment, PAGE)) * max(backend.alignment, PAGE)
        cached = data.draw(st.integers(0, LIMITS.context_tokens - 256))
        for length in data.draw(st.lists(st.integers(1, LIMITS.segment_tokens), max_size=20)):
            if row + length <= tokens:
                columns.append((row, length, context, cached))
                row += length
    starts, lens, contexts, cached = np.array(columns, np.int32).reshape(-1, 4).T.copy()
    pages = LIMITS.context_tokens // PAGE
    found = lay_out(
        starts=starts,
        lens=lens,
        context_ids=contexts,
        context_lens=cached,
        paged=np.zeros(len(starts), bool),
        page_table=np.arange(LIMITS.contexts * pages, dtype=np.int32).reshape(-1, pages),
        page_size=PAGE,
        tokens=tokens,
        backend=backend,
        tile_capacity=backend.tile_capacity(tokens, LIMITS),
    )
    assert found.num_tokens == tokens


@pytest.mark.parametrize(
    ("chip", "dtype", "tiled"), [("v7x", "bfloat16", True), ("v7x", "float32", False), ("v6e", "bfloat16", False)]
)
def test_weights_have_tiles_of_16_rows_where_products_read_them(chip: str, dtype: str, tiled: bool) -> None:
    cut = SingleDeviceSharding(jax.devices()[0])
    with compiling_for(chip):
        backend = choose(HEAD_SHAPES["qwen3-0.6b"], "bfloat16")
        placed = backend.placement(jax.ShapeDtypeStruct((28, 1024, 4096), dtype), cut)
    assert (placed != cut) == tiled
    if tiled:
        assert (placed.sharding, placed.layout.tiling) == (cut, ((16, 128), (2, 1)))


def test_weights_that_are_cut_lie_as_xla_takes_their_parts() -> None:
    mesh = AbstractMesh((1, 2), ("data", "tensor"))
    weight = jax.ShapeDtypeStruct((28, 1024, 4096), "bfloat16")
    with compiling_for("v7x"):
        backend = choose(HEAD_SHAPES["qwen3-0.6b"], "bfloat16")
        for spec, cut in ((P(None, None, "tensor"), True), (P("data"), False), (P(), False)):
            on = NamedSharding(mesh, spec)
            assert (backend.placement(weight, on) == on) == cut
