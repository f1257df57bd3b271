"""Steps of single tokens behind contexts of their own: rows side by side, each written to its slot of a page."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import EMULATED, NATIVE_TYPES, NEEDS_NATIVE, ON_CPU, PAGE, SMALL, in_float32, on_host
from mis_kernels import lay_out, segment_attention, write_pages
from mis_kernels.backends import Backend, LaidOut, StepLimits, choose
from mis_kernels.backends.gpu.backend import GpuBackend
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.xla.pages import write_rows as scatter
from mis_kernels.heads import HeadShape
from mis_kernels.segments import NOWHERE
from mis_kernels.target import compiling_for
from mis_testing.tolerances import ATTENTION

ROWS = 64
PAGES_PER_CONTEXT = 20
POSITIONS = (0, 1, 63, 64, 700, 1279)
"""Of the tokens, each the last of its context."""

HEADS = HeadShape(4, 2, 64)
WIDE = HeadShape(2, 2, 128)
LIMITS = StepLimits(contexts=ROWS, context_tokens=PAGES_PER_CONTEXT * PAGE, segment_tokens=1, decoding=True)
Interpret = bool | pltpu.InterpretParams


def page_table() -> np.ndarray:
    pages = np.random.default_rng(1).permutation(ROWS * PAGES_PER_CONTEXT).astype(np.int32)
    return pages.reshape(ROWS, PAGES_PER_CONTEXT)


def decode_step(backend: Backend, contexts: tuple[int, ...], rows: tuple[int, ...], tokens: int = ROWS) -> LaidOut:
    """One token at `POSITIONS[context]` for each context, in these rows of so many."""
    table, positions = page_table(), np.array(POSITIONS, np.int32)[list(contexts)]
    writes = np.full(tokens, NOWHERE, np.int32)
    writes[list(rows)] = table[list(contexts), positions // PAGE]
    backend = backend.for_decoding()
    return lay_out(
        starts=np.array(rows, np.int32),
        lens=np.ones(len(rows), np.int32),
        context_ids=np.array(contexts, np.int32),
        context_lens=positions,
        paged=np.ones(len(rows), bool),
        page_table=table,
        page_size=PAGE,
        tokens=tokens,
        backend=backend,
        tile_capacity=backend.tile_capacity(tokens, LIMITS),
        page_writes=writes,
    )


def prefill_step(backend: Backend, context: int) -> LaidOut:
    """All tokens of a context up to its last in one segment; of the same sizes for every context."""
    length, tokens = POSITIONS[context] + 1, PAGES_PER_CONTEXT * PAGE
    return lay_out(
        starts=np.zeros(1, np.int32),
        lens=np.array([length], np.int32),
        context_ids=np.array([context], np.int32),
        context_lens=np.zeros(1, np.int32),
        paged=np.ones(1, bool),
        page_table=page_table(),
        page_size=PAGE,
        tokens=tokens,
        backend=backend,
        tile_capacity=backend.tile_capacity(tokens, LIMITS._replace(segment_tokens=tokens, decoding=False)),
    )


def new_tokens(heads: HeadShape, context: int, dtype: str) -> list[np.ndarray]:
    """q, k and v of every token of a context, `[tokens, heads, head_dim]`."""
    random, length = np.random.default_rng(context), POSITIONS[context] + 1
    shapes = [(length, count, heads.head_dim) for count in (heads.heads, heads.kv_heads, heads.kv_heads)]
    return [np.asarray(jnp.asarray(random.standard_normal(shape), dtype)) for shape in shapes]


def run(
    q: jax.Array, k: jax.Array, v: jax.Array, caches: list, segments: LaidOut, backend: Backend
) -> tuple[jax.Array, list]:
    """Write pages, then attend."""
    caches = [write_pages(old, new, segments, backend) for old, new in zip(caches, (k, v), strict=True)]
    return segment_attention(q, k, v, *caches, segments, scale=0.125, backend=backend), caches


emulated = jax.jit(run, static_argnames="backend", compiler_options=EMULATED)
compiled = jax.jit(run, static_argnames="backend")


def caches_before(heads: HeadShape, contexts: tuple[int, ...], dtype: str) -> list[jax.Array]:
    """Caches with all tokens of the contexts but the last; NaN where nobody wrote."""
    caches = [np.full((heads.kv_heads, ROWS * PAGES_PER_CONTEXT, PAGE, heads.head_dim), np.nan) for _ in range(2)]
    for context in contexts:
        position = np.arange(POSITIONS[context])
        at = page_table()[context, position // PAGE], position % PAGE
        for cache, new in zip(caches, new_tokens(heads, context, dtype)[1:], strict=True):
            cache[:, at[0], at[1]] = new[:-1].swapaxes(0, 1)
    return [jnp.asarray(cache, dtype) for cache in caches]


def last_tokens(heads: HeadShape, contexts: tuple[int, ...], rows: tuple[int, ...], dtype: str) -> list[jax.Array]:
    arrays = [np.zeros((ROWS, count, heads.head_dim)) for count in (heads.heads, heads.kv_heads, heads.kv_heads)]
    for context, row in zip(contexts, rows, strict=True):
        for array, new in zip(arrays, new_tokens(heads, context, dtype), strict=True):
            array[row] = new[-1]
    return [jnp.asarray(array, dtype) for array in arrays]


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_decoded_row_has_the_bits_of_a_prefilled_one(backend: str) -> None:
    dtype = "bfloat16" if backend == "native" else "float32"
    chosen = choose(HEADS, dtype, backend)
    contexts = tuple(range(len(POSITIONS)))
    found = []
    for order, rows in ((contexts, (0, 3, 9, 31, 62, 63)), (contexts[::-1], (1, 2, 4, 40, 41, 42))):
        inputs = last_tokens(HEADS, order, rows, dtype), caches_before(HEADS, order, dtype)
        out, _ = compiled(*inputs[0], inputs[1], decode_step(chosen, order, rows), chosen)
        by_context = dict(zip(order, np.asarray(out)[list(rows)], strict=True))
        found.append([by_context[context] for context in contexts])
        assert not np.asarray(out)[[row for row in range(ROWS) if row not in rows]].any()
    for context in contexts:
        new = new_tokens(HEADS, context, dtype)
        segments = prefill_step(chosen, context)
        padded = [jnp.asarray(np.pad(x, ((0, segments.num_tokens - len(x)), (0, 0), (0, 0)))) for x in new]
        empty = [jnp.full_like(cache, jnp.nan) for cache in caches_before(HEADS, (), dtype)]
        whole = np.asarray(compiled(*padded, empty, segments, chosen)[0])[POSITIONS[context]]
        for each in found:
            np.testing.assert_array_equal(each[context], whole)


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("dtype", [pytest.param(name, marks=needed) for name, needed in NATIVE_TYPES.items()])
def test_a_decoded_row_has_the_same_bits_in_a_step_of_few_rows(rows: int, dtype: str) -> None:
    chosen, contexts = choose(HEADS, dtype, "native"), (5, 3, 4, 0, 1, 2)
    assert rows in chosen.few_rows
    caches = caches_before(HEADS, contexts, dtype)
    whole = compiled(
        *last_tokens(HEADS, contexts, tuple(range(6)), dtype),
        caches,
        decode_step(chosen, contexts, tuple(range(6))),
        chosen,
    )
    live = min(rows, 6)
    places = tuple(range(rows - live, rows))
    inputs = [x[:rows] for x in last_tokens(HEADS, contexts[:live], places, dtype)]
    out, cache = compiled(*inputs, caches, decode_step(chosen, contexts[:live], places, rows), chosen)
    np.testing.assert_array_equal(np.asarray(out)[list(places)], np.asarray(whole[0])[:live])
    if live == 6:
        for few, many in zip(cache, whole[1], strict=True):
            np.testing.assert_array_equal(np.asarray(few, np.float32), np.asarray(many, np.float32))


@NEEDS_NATIVE
def test_a_step_of_few_rows_has_one_of_the_backends_sizes() -> None:
    chosen = choose(HEADS, "bfloat16", "native")
    segments = decode_step(chosen, (0,), (0,), 24)
    q, k, v = (x[:24] for x in last_tokens(HEADS, (0,), (0,), "bfloat16"))
    with pytest.raises(ValueError, match="q: 24 tokens; pad to a multiple of 64"):
        segment_attention(q, k, v, *caches_before(HEADS, (0,), "bfloat16"), segments, scale=0.125, backend=chosen)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("xla", "float32"),
        pytest.param("xla", "bfloat16", marks=pytest.mark.full),
        pytest.param("tpu", "float32", marks=[pytest.mark.tpu, pytest.mark.full]),
        pytest.param("tpu", "bfloat16", marks=pytest.mark.tpu),
        pytest.param("gpu", "bfloat16", marks=pytest.mark.gpu),
        pytest.param("gpu", "float32", marks=pytest.mark.full),
    ],
)
def test_decoding_equals_the_reference(
    backend: str, dtype: str, interpret: bool, gpu: Callable[[], AbstractContextManager]
) -> None:
    made = {"tpu": lambda: TpuBackend(WIDE, dtype, SMALL), "gpu": lambda: GpuBackend.create(WIDE, dtype)}
    chosen = made[backend]() if backend in made else choose(WIDE, dtype, backend)
    contexts, rows = (5, 0, 2, 3), (0, 1, 17, 63)
    emulating = compiling_for(interpret=interpret and backend == "tpu", bounds_checks=True)
    with gpu() if backend == "gpu" else emulating:
        segments = decode_step(chosen, contexts, rows)
        q, k, v = last_tokens(WIDE, contexts, rows, dtype)
        out, (k_pages, v_pages) = emulated(q, k, v, caches_before(WIDE, contexts, dtype), segments, chosen)
    expected = in_float32(
        {"q": q, "k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages, "segments": segments, "scale": 0.125}
    )
    tolerance = 1e-4 if dtype == "float32" else ATTENTION[dtype]
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=tolerance, rtol=tolerance)


def test_a_scatter_writes_rows_to_their_slots_and_nothing_else() -> None:
    pages, new, writes, slots = rows_to_write("float32")
    found, expected = np.asarray(scatter(pages, new, writes, slots)), np.array(pages)
    for row, (page, slot) in enumerate(zip(writes.tolist(), slots.tolist(), strict=True)):
        if page < NOWHERE:
            expected[:, page, slot] = np.asarray(new[row])
    np.testing.assert_array_equal(found, expected)


def rows_to_write(dtype: str) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    pages, new = (jnp.asarray(random.standard_normal(shape), dtype) for shape in ((2, 9, PAGE, 128), (ROWS, 2, 128)))
    writes, slots = np.full(ROWS, NOWHERE + 3, np.int32), random.integers(0, PAGE, ROWS).astype(np.int32)
    writes[[0, 5, 6, 62, 63]] = [8, 0, 3, 2, 7]
    return pages, new, jnp.asarray(writes), jnp.asarray(slots)


@partial(jax.jit, static_argnames=("backend", "interpret"), donate_argnums=0, compiler_options=EMULATED)
def write(
    pages: jax.Array, new: jax.Array, writes: jax.Array, slots: jax.Array, backend: Backend, interpret: Interpret
) -> jax.Array:
    with compiling_for(interpret=interpret, bounds_checks=True):
        return backend.write_rows(pages, new, writes, slots)


@pytest.mark.tpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_by_dma_are_those_of_a_scatter(dtype: str, interpret: bool) -> None:
    given = rows_to_write(dtype)
    with on_host():
        expected = np.asarray(scatter(*map(jnp.asarray, map(np.asarray, given))), np.float32)
    found = write(jnp.array(given[0]), *given[1:], TpuBackend(WIDE, dtype, SMALL), interpret)
    np.testing.assert_array_equal(np.asarray(found, np.float32), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_by_dma_do_not_race(dtype: str) -> None:
    given = rows_to_write(dtype)
    races = pltpu.InterpretParams(detect_races=True)
    found = write(jnp.array(given[0]), *given[1:], TpuBackend(WIDE, dtype, SMALL), races)
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(scatter(*given), np.float32))
