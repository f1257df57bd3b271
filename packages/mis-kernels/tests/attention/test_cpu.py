"""What CPUs run, and GPUs in part, against the float32 reference, and the bits of one segment beside others."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_cases import CPU_IMPLEMENTATIONS, NATIVE, Case, Segment, in_float32, on_gpu
from mis_kernels import segment_attention, to_bits
from mis_testing.grids import third

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
RUN = {
    name: jax.jit(partial(segment_attention, implementation=name), static_argnames="scale")
    for name in ("xla", "native")
}
run_xla = RUN["xla"]

CASES = {
    "one item without context": Case([Segment(3)]),
    "items behind a short context": Case([Segment(n) for n in (5, 1, 20, 7)], contexts=(100,)),
    "context ends on a page edge": Case([Segment(9), Segment(2)], contexts=(128,)),
    "context longer than a tile": Case([Segment(20)] * 10, contexts=(1300,), kv_heads=1),
    "many contexts in one block": Case([Segment(4, context=c) for c in range(6)], contexts=(1, 63, 64, 65, 600, 0)),
    "a query in one chunk": Case([Segment(200, paged=True)]),
    "a later chunk of a query": Case([Segment(130, paged=True)], contexts=(512,)),
    "a query and items in one step": Case([Segment(100, paged=True)] + [Segment(6, context=1)] * 3, contexts=(0, 70)),
    "an item longer than a block": Case([Segment(3), Segment(300), Segment(4)], contexts=(65,)),
    "an item that crosses blocks": Case([Segment(250), Segment(20), Segment(20)], contexts=(65,), group=1),
    "items see parts of a context": Case([Segment(5, context_len=n) for n in (0, 1, 64, 99)], contexts=(100,)),
    "padding between segments": Case([Segment(5), Segment(6)], contexts=(30,), gap=9, tokens=64),
    "head_dim 64, group 7": Case([Segment(20)] * 4, contexts=(200,), group=7, head_dim=64),
    "head_dim 96, multi-query": Case([Segment(20)] * 4, contexts=(200,), kv_heads=1, group=8, head_dim=96),
    "head_dim 128, group 1": Case([Segment(20)] * 4, contexts=(200,), kv_heads=8, group=1, head_dim=128),
    "head_dim 256": Case([Segment(20)] * 4, contexts=(200,), group=4, head_dim=256),
    "context of 40,000 tokens": Case([Segment(4), Segment(1)], contexts=(40_000,), kv_heads=1, group=1),
    "2,000 items": Case([Segment(1 + n % 4) for n in range(2000)], contexts=(129,), kv_heads=1, group=1),
}


@pytest.mark.parametrize("point", on_gpu(third([*itertools.product(CASES, TOLERANCE)])))
def test_equals_the_reference(point: tuple[str, str]) -> None:
    name, dtype = point
    arrays = CASES[name].arrays(jnp.dtype(dtype))
    np.testing.assert_allclose(
        np.asarray(run_xla(**arrays), np.float32), in_float32(arrays), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("implementation", [NATIVE])
def test_native_equals_the_reference(case: Case, implementation: str) -> None:
    case = dataclasses.replace(case, head_dim=max(case.head_dim, 32))
    arrays = case.arrays(jnp.bfloat16)
    found = np.asarray(RUN[implementation](**arrays), np.float32)
    np.testing.assert_allclose(found, in_float32(arrays), atol=1e-2, rtol=1e-2)
    np.testing.assert_array_equal(found, np.asarray(segment_attention(**_without_tiles(arrays)), np.float32))


def _without_tiles(arrays: dict) -> dict:
    """The same step, laid out without tile lists: then the native implementation is chosen."""
    return {**arrays, "segments": dataclasses.replace(arrays["segments"], tiles=None)}


@pytest.mark.parametrize("implementation", [NATIVE])
def test_native_runs_within_a_scan_over_layers(implementation: str) -> None:
    arrays = _without_tiles(Case([Segment(20), Segment(70)], contexts=(300,), head_dim=64).arrays(jnp.bfloat16))
    scale, once = arrays.pop("scale"), segment_attention(**arrays | {"scale": 0.125})

    def layers(q: jax.Array, **rest) -> jax.Array:
        def layer(total: jax.Array, _: jax.Array) -> tuple[jax.Array, None]:
            return total + segment_attention(q, **rest, scale=scale), None

        return jax.lax.scan(layer, jnp.zeros_like(q), jnp.arange(4))[0]

    np.testing.assert_allclose(np.asarray(jax.jit(layers)(**arrays), np.float32), 4 * np.asarray(once, np.float32))


def test_native_is_refused_where_it_cannot_run() -> None:
    arrays = Case([Segment(5)], contexts=(30,)).arrays(jnp.float32)
    with pytest.raises(ValueError, match="native is not available here for float32 heads of 16"):
        segment_attention(**arrays, implementation="native")


@pytest.mark.gpu
def test_the_comparison_notices_a_context_that_is_one_token_too_long() -> None:
    case = Case([Segment(5)], contexts=(100,))
    arrays = case.arrays(jnp.float32)
    longer = Case([Segment(5, context_len=99)], contexts=(100,)).arrays(jnp.float32)
    assert np.abs(np.asarray(run_xla(**longer)) - in_float32(arrays)).max() > 1e-3


@pytest.mark.gpu
def test_bits_kept_as_integers_give_the_same_output() -> None:
    arrays = Case([Segment(20), Segment(130, paged=True, context=1)], contexts=(100, 64)).arrays(jnp.bfloat16)
    as_bits = {**arrays, "k_pages": to_bits(arrays["k_pages"]), "v_pages": to_bits(arrays["v_pages"])}
    np.testing.assert_array_equal(np.asarray(run_xla(**arrays)), np.asarray(run_xla(**as_bits)))


@pytest.mark.gpu
def test_rows_outside_segments_are_zero() -> None:
    case = Case([Segment(5)], contexts=(30,), tokens=64)
    assert not np.asarray(run_xla(**case.arrays(jnp.float32)))[5:].any()


@pytest.mark.parametrize("implementation", CPU_IMPLEMENTATIONS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    neighbours=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2)), max_size=6),
    order=st.randoms(use_true_random=False),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    group=st.sampled_from([1, 2]),
    tokens=st.sampled_from([3072, None]),
)
def test_a_segments_bits_do_not_depend_on_other_segments(
    implementation, lengths, neighbours, order, dtype, group, tokens
) -> None:
    """Alone and among others - more, longer, of other contexts, in any order - a segment's output is the same."""
    contexts = (300, 0, 70)
    chosen = Segment(lengths[0])
    others = [Segment(n) for n in lengths[1:]] + [Segment(n, context=c) for n, c in neighbours]
    order.shuffle(others)
    at = order.randrange(len(others) + 1)
    dtype, head_dim = ("bfloat16", 64) if implementation == "native" else (dtype, 16)
    alone = Case([chosen], contexts, group=group, head_dim=head_dim)
    among = Case([*others[:at], chosen, *others[at:]], contexts, group=group, tokens=tokens, head_dim=head_dim)

    def rows(case: Case, index: int) -> np.ndarray:
        start = case.layout()[1][index]
        return np.asarray(RUN[implementation](**case.arrays(jnp.dtype(dtype))))[start : start + chosen.length]

    np.testing.assert_array_equal(rows(alone, 0), rows(among, at))


@pytest.mark.parametrize("implementation", CPU_IMPLEMENTATIONS)
def test_a_querys_bits_do_not_depend_on_how_it_is_chunked(implementation: str) -> None:
    run = RUN[implementation]
    whole = Case([Segment(640, paged=True)], group=1, head_dim=32)
    arrays = whole.arrays(jnp.bfloat16)
    later = Case([Segment(128, paged=True)], contexts=(512,), group=1, head_dim=32).layout()[0]
    table = whole.page_table()
    part = {**arrays, **{name: arrays[name][512:640] for name in "qkv"}, "segments": _on(later, table)}
    np.testing.assert_array_equal(np.asarray(run(**arrays))[512:640], np.asarray(run(**part))[:128])


def _on(segments, table):
    return dataclasses.replace(segments, page_table=table)


def test_bad_shapes_are_named() -> None:
    arrays = Case([Segment(5)], contexts=(30,)).arrays(jnp.float32)
    with pytest.raises(ValueError, match="q: 3 heads are not a multiple of 2"):
        segment_attention(**{**arrays, "q": arrays["q"][:, :3]})
    with pytest.raises(ValueError, match="segments: describe 64 tokens"):
        segment_attention(**{**arrays, **{name: arrays[name][:32] for name in "qkv"}})
    with pytest.raises(ValueError, match="implementation: 'cuda' is unknown"):
        segment_attention(**arrays, implementation="cuda")
