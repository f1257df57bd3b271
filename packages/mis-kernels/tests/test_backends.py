"""Every backend on one catalogue of steps against the float32 reference, and the bits of one segment beside others."""

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernel_cases import (
    CASES,
    NATIVE,
    NATIVE_TYPES,
    NEEDS_NATIVE,
    ON_CPU,
    PAGE,
    UNOPTIMISED,
    Case,
    Segment,
    backend_of,
    in_float32,
    on_gpu,
)
from mis_kernels import segment_attention, to_bits
from mis_kernels.backends import StepLimits
from mis_kernels.target import compiling_for
from mis_testing.grids import part
from mis_testing.tolerances import ATTENTION

GRID_HAS = {  # every value of these axes, for the same backends and per commit, too
    "head_dim 64, group 7", "head_dim 96, multi-query", "head_dim 128, group 1", "head_dim 256",
    "context of 40,000 tokens", "2,000 items", "context ends on a page edge", "padding between segments",
}  # fmt: skip
EMULATED = {  # per commit; the grid of the emulated kernel has the rest
    ("many contexts in one block", "bfloat16"), ("a window over many contexts", "bfloat16"),
    ("a cap and a window over many contexts", "float32"),
}  # fmt: skip
ON_EMULATED_GPU = {  # per commit: all that a program does
    ("many contexts in one block", "bfloat16"), ("a later chunk of a query", "float32"),
    ("an item longer than a block", "float32"), ("items see parts of a context", "bfloat16"),
    ("head_dim 64, group 7", "float32"), ("head_dim 96, multi-query", "bfloat16"), ("head_dim 256", "bfloat16"),
    ("a window shorter than items", "float32"), ("a window at a page's edge over a later chunk", "bfloat16"),
    ("a cap and a window over many contexts", "float32"),
}  # fmt: skip

STATIC = ("scale", "cap", "backend")
attend = jax.jit(segment_attention, static_argnames=STATIC)


def points() -> list[ParameterSet]:
    """Backend, case and type; emulating the TPU's kernel takes long."""
    own, more = ([name for name in CASES if (name in GRID_HAS) is full] for full in (False, True))
    made = on_gpu(part([*itertools.product(["xla"], own, ATTENTION)], one_in=6))
    for name, dtype in itertools.product(more, ATTENTION):
        made += on_gpu([pytest.param(("xla", name, dtype), marks=pytest.mark.full, id=f"xla-{name}-{dtype}")])
    for name, (dtype, needed) in itertools.product(CASES, NATIVE_TYPES.items()):
        marks = [needed, *[pytest.mark.full] * (name in GRID_HAS)]
        made.append(pytest.param(("native", name, dtype), marks=marks, id=f"native-{name}-{dtype}"))
    for name, dtype in itertools.product(CASES, ATTENTION):
        marks = [pytest.mark.tpu] if (name, dtype) in EMULATED else [pytest.mark.tpu, pytest.mark.full]
        made.append(pytest.param(("tpu", name, dtype), marks=marks, id=f"tpu-{name}-{dtype}"))
    for name, dtype in itertools.product(CASES, ATTENTION):
        marks = [] if (name, dtype) in ON_EMULATED_GPU else [pytest.mark.full]
        made += on_gpu([pytest.param(("gpu", name, dtype), marks=marks, id=f"gpu-{name}-{dtype}")])
    return made


@pytest.mark.parametrize("point", points())
def test_equals_the_reference(
    point: tuple[str, str, str], interpret: bool, gpu: Callable[[], AbstractContextManager]
) -> None:
    backend, name, dtype = point
    case = CASES[name]
    case = dataclasses.replace(case, head_dim=max(case.head_dim, 32)) if backend == "native" else case
    emulated = compiling_for(interpret=interpret and backend == "tpu", bounds_checks=True)
    options = UNOPTIMISED if backend in ("tpu", "gpu") and jax.default_backend() != backend else None
    attend = jax.jit(segment_attention, static_argnames=STATIC, compiler_options=options)
    with gpu() if backend == "gpu" else emulated:
        arrays = case.arrays(jnp.dtype(dtype), backend_of(backend, case, dtype))
        found = np.asarray(attend(**arrays), np.float32)
    tolerance = 1e-4 if (backend, dtype) == ("tpu", "float32") else ATTENTION[dtype]
    np.testing.assert_allclose(found, in_float32(arrays), atol=tolerance, rtol=tolerance)


@NEEDS_NATIVE
def test_the_native_kernel_takes_segments_of_any_backend() -> None:
    case = Case([Segment(20)] * 4, contexts=(200,), head_dim=64)
    tiled, native = (case.arrays(jnp.bfloat16, backend) for backend in ("xla", "native"))
    np.testing.assert_array_equal(np.asarray(attend(**tiled | {"backend": "native"})), np.asarray(attend(**native)))


@pytest.mark.parametrize("backend", [NATIVE])
def test_native_runs_within_a_scan_over_layers(backend: str) -> None:
    arrays = Case([Segment(20), Segment(70)], contexts=(300,), head_dim=64).arrays(jnp.bfloat16, backend)
    static = {name: arrays.pop(name) for name in ("scale", "backend")}
    once = segment_attention(**arrays, **static)

    def layers(q: jax.Array, **rest) -> jax.Array:
        def layer(total: jax.Array, _: jax.Array) -> tuple[jax.Array, None]:
            return total + segment_attention(q, **rest, **static), None

        return jax.lax.scan(layer, jnp.zeros_like(q), jnp.arange(4))[0]

    np.testing.assert_allclose(np.asarray(jax.jit(layers)(**arrays), np.float32), 4 * np.asarray(once, np.float32))


def test_native_is_refused_where_it_cannot_run() -> None:
    arrays = Case([Segment(5)], contexts=(30,), head_dim=48).arrays(jnp.float32)
    with pytest.raises(ValueError, match="native needs heads of a multiple of 32 up to 1024, not 48"):
        segment_attention(**arrays | {"backend": "native"})


@pytest.mark.gpu
def test_the_comparison_notices_one_context_token_too_many() -> None:
    case = Case([Segment(5)], contexts=(100,))
    arrays = case.arrays(jnp.float32)
    longer = Case([Segment(5, context_len=99)], contexts=(100,)).arrays(jnp.float32)
    assert np.abs(np.asarray(attend(**longer)) - in_float32(arrays)).max() > 1e-3


def seers(arrays: dict[str, Any], name: str, at: Any) -> list[int]:
    """Return the rows that change if a value does."""
    before, after = (
        np.asarray(attend(**arrays | {name: values}), np.float32)
        for values in (arrays[name], arrays[name].at[at].set(1e4))
    )
    return np.flatnonzero((after != before).any((1, 2))).tolist()


@pytest.mark.parametrize("edge", [64, 256, 512], ids=["a page", "a native tile", "a tile of XLA and the chunk"])
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_window_ends_where_it_should_at_every_edge(backend: str, edge: int) -> None:
    """The rows that a cached token's value changes are those that see it, and not one more; so are those of an item."""
    dtype = "bfloat16" if backend == "native" else "float32"
    shape: dict[str, Any] = {"head_dim": 32, "limits": StepLimits(1, 700, 600)}
    query = Case([Segment(130, paged=True)], contexts=(512,), window=512 + 6 - edge, **shape)
    arrays = query.arrays(jnp.dtype(dtype), backend_of(backend, query, dtype))
    pages = query.page_table()[0]
    for position in (edge - 1, edge):
        rows = seers(arrays, "v_pages", np.s_[:, pages[position // PAGE], position % PAGE])
        assert rows == list(range(max(0, position - 512), 6 - edge + position))
    item = Case([Segment(600)], contexts=(30,), window=edge - 5, **shape)
    arrays = item.arrays(jnp.dtype(dtype), backend_of(backend, item, dtype))
    assert seers(arrays, "v", 5) == list(range(5, edge))
    assert seers(arrays, "v_pages", np.s_[:, item.page_table()[0][0], 29]) == list(range(edge - 6))


@pytest.mark.gpu
def test_bits_kept_as_integers_give_the_same_output() -> None:
    arrays = Case([Segment(20), Segment(130, paged=True, context=1)], contexts=(100, 64)).arrays(jnp.bfloat16)
    as_bits = {**arrays, "k_pages": to_bits(arrays["k_pages"]), "v_pages": to_bits(arrays["v_pages"])}
    np.testing.assert_array_equal(np.asarray(attend(**arrays)), np.asarray(attend(**as_bits)))


@pytest.mark.gpu
def test_rows_outside_segments_are_zero() -> None:
    case = Case([Segment(5)], contexts=(30,), tokens=64)
    assert not np.asarray(attend(**case.arrays(jnp.float32)))[5:].any()


@pytest.mark.parametrize("tokens", [2048, *(pytest.param(each, marks=pytest.mark.full) for each in (2560, 3072))])
@pytest.mark.parametrize("backend", ON_CPU)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    length=st.integers(1, 90) | st.integers(90, 1024),
    lengths=st.lists(st.integers(1, 90), max_size=7),
    neighbours=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 14)), max_size=20)
    | st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2)), max_size=4)
    | st.lists(st.tuples(st.integers(300, 1024), st.integers(0, 2)), max_size=1),
    order=st.randoms(use_true_random=False),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    context=st.sampled_from([0, 2, 3, 4, 5]),
    window=st.sampled_from([None, 1, 64, 130, 513]),
    cap=st.sampled_from([None, 2.0]),
)
def test_a_segments_bits_do_not_depend_on_other_segments(
    backend, tokens, length, lengths, neighbours, order, dtype, context, window, cap
) -> None:
    """Alone and among others - more, longer, of other contexts, in any order - a segment's output is the same."""
    contexts = (300, 0, 70, 60, 200, 1100, *range(61, 70))
    chosen = Segment(length, context=context)
    others = [Segment(n) for n in lengths] + [Segment(n, context=c) for n, c in neighbours]
    assume(length + sum(each.length for each in others) <= tokens)
    order.shuffle(others)
    at = order.randrange(len(others) + 1)
    head_dim = 64 if backend == "native" else 16
    shape = {"contexts": contexts, "group": 2, "head_dim": head_dim, "limits": StepLimits(len(contexts), 1100, 1024)}
    if backend == "native" or tokens != 2048:  # others would compile twice as many steps per commit
        shape |= {"window": window, "cap": cap, "spread": 6.0}
    alone = Case([chosen], tokens=128 if length <= 128 else 1024, **shape)
    among = Case([*others[:at], chosen, *others[at:]], tokens=tokens, **shape)

    def rows(case: Case, index: int) -> np.ndarray:
        start = case.layout()[1][index]
        arrays = case.arrays(jnp.dtype(dtype), backend_of(backend, case, dtype))
        return np.asarray(attend(**arrays))[start : start + chosen.length]

    np.testing.assert_array_equal(rows(alone, 0), rows(among, at))


@pytest.mark.parametrize(("window", "cap"), [(None, None), (200, None), pytest.param(200, 2.0, marks=pytest.mark.full)])
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_querys_bits_do_not_depend_on_how_it_is_chunked(backend: str, window: int | None, cap: float | None) -> None:
    whole = Case([Segment(640, paged=True)], group=1, head_dim=32, window=window, cap=cap, spread=6.0)
    arrays = whole.arrays(jnp.bfloat16, backend)
    later = Case([Segment(128, paged=True)], contexts=(512,), group=1, head_dim=32, window=window).layout(backend)[0]
    table = whole.page_table()
    part = {**arrays, **{name: arrays[name][512:640] for name in "qkv"}, "segments": _on(later, table)}
    np.testing.assert_array_equal(np.asarray(attend(**arrays))[512:640], np.asarray(attend(**part))[:128])


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_capped_segments_bits_do_not_depend_on_other_segments(backend: str) -> None:
    shape: dict[str, Any] = {"contexts": (300, 70), "tokens": 256, "head_dim": 32, "limits": StepLimits(2, 300, 128)}
    shape |= {"cap": 2.0, "spread": 6.0}
    chosen = Segment(90)
    alone, among = Case([chosen], **shape), Case([Segment(3), Segment(70, context=1), chosen, Segment(60)], **shape)

    def rows(case: Case, index: int) -> np.ndarray:
        start = case.layout()[1][index]
        found = attend(**case.arrays(jnp.bfloat16, backend_of(backend, case, "bfloat16")))
        return np.asarray(found)[start : start + chosen.length]

    np.testing.assert_array_equal(rows(alone, 0), rows(among, 2))


@pytest.mark.parametrize("backend", ["xla", "dense", "reference", "tpu", "gpu"])
def test_programs_without_a_cap_know_nothing_of_caps(backend: str, gpu: Callable[[], AbstractContextManager]) -> None:
    def program(cap: float | None) -> str:
        case = Case([Segment(5)], contexts=(30,), cap=cap)
        with gpu() if backend == "gpu" else compiling_for(interpret=True):
            arrays = case.arrays(jnp.float32, backend_of(backend, case, "float32"))
            how = {name: arrays.pop(name) for name in STATIC if name in arrays}
            return str(jax.make_jaxpr(lambda arrays: segment_attention(**arrays, **how))(arrays))

    assert "tanh" in program(50.0)
    assert "tanh" not in program(None)


def _on(segments, table):
    return dataclasses.replace(segments, page_table=table)


def test_bad_shapes_are_named() -> None:
    arrays = Case([Segment(5)], contexts=(30,)).arrays(jnp.float32)
    with pytest.raises(ValueError, match="q: 3 heads are not a multiple of 2"):
        segment_attention(**{**arrays, "q": arrays["q"][:, :3]})
    with pytest.raises(ValueError, match="segments: describe 64 tokens"):
        segment_attention(**{**arrays, **{name: arrays[name][:32] for name in "qkv"}})
    with pytest.raises(ValueError, match="backend: 'cuda' is unknown"):
        segment_attention(**arrays | {"backend": "cuda"})
    with pytest.raises(ValueError, match="cap: must be positive, not 0"):
        segment_attention(**arrays, cap=0.0)
