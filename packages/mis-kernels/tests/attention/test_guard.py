"""Logits that a fixed anchor alone would lose or overflow with: the TPU kernel computes such rows anew, and only those.

All steps have the same shapes, so one compilation serves them.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_cases import UNOPTIMISED, on_host
from mis_kernels import Segments, reference_attention
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_testing.bits import assert_bits_equal
from mis_testing.tolerances import ATTENTION
from tpu_cases import Case, arrays, attend, items, lay_out_case, live

pytestmark = pytest.mark.tpu

# Compiled as a whole: outside of `jit` every operation is compiled by itself.
reference = jax.jit(reference_attention, static_argnames=("scale", "cap"), compiler_options=UNOPTIMISED)

TOKENS, CACHED, NEW_TOKENS = 256, 300, 40
SHAPES = {
    "tokens": TOKENS, "kv_heads": 1, "contexts": 2, "pages_per_context": 8, "tile_capacity": 16,
    "blocks": TpuBlocks(tokens=128, keys=128, strip=128, key_step=128), "shuffle": True,
}  # fmt: skip
EVERY = CACHED + NEW_TOKENS
AFAR = 2.0**66
"""A power of two, which also units that split float32 multiply exactly; its square is infinite."""


def first_but(value: float, others: float, at: int) -> np.ndarray:
    return np.where(np.arange(EVERY) == at, value, others)


LOGITS: dict[str, Callable[[], np.ndarray]] = {
    "rising by 200": lambda: np.arange(EVERY) * 200.0,
    "falling by 200": lambda: np.arange(EVERY) * -200.0,
    "one outlier first": lambda: first_but(1e4, 0, 0),
    "one outlier in the middle": lambda: first_but(1e4, 0, 150),
    "one outlier in a limited tile": lambda: first_but(1e4, 0, CACHED - 1),
    "one outlier in the item": lambda: first_but(1e4, 0, CACHED),
    "one outlier below": lambda: first_but(-1e4, 0, CACHED + 3),
    "all equal": lambda: np.zeros(EVERY),
    "all equal and high": lambda: np.full(EVERY, 1e4),
    "all equal and low": lambda: np.full(EVERY, -1e4),
    "minus infinity but the first": lambda: first_but(0, -AFAR, 0),
    "minus infinity but one in the middle": lambda: first_but(3, -AFAR, 200),
    "the context is higher by what is safe": lambda: np.where(np.arange(EVERY) < CACHED, 60.0, 0),
    "the context is higher by a little more": lambda: np.where(np.arange(EVERY) < CACHED, 70.0, 0),
    "the context is as high as the item is low": lambda: np.where(np.arange(EVERY) < CACHED, 1e4, -1e4),
    "around the guard": lambda: np.random.default_rng(0).uniform(-90, 90, EVERY),
}


def step(*segments: tuple[int, int, int, bool], dtype: str) -> tuple[list[jax.Array], Segments]:
    case = Case("", segments, dtype=dtype, **SHAPES)
    laid_out, pages = lay_out_case(case)
    return list(arrays(case, pages, laid_out)), laid_out


def with_logits(logits: np.ndarray) -> tuple[list[jax.Array], Segments]:
    """One item behind a context, whose rows have these logits with the keys they see, `[CACHED + NEW_TOKENS]`."""
    inputs, segments = step(*items(0, CACHED, NEW_TOKENS), dtype="float32")
    q, k, v, k_pages, v_pages = map(np.array, inputs)
    factor = AFAR if np.abs(logits).max() == AFAR else 1.0
    column = (logits / np.where(np.abs(logits) == AFAR, 1, factor)).astype(np.float32)
    q[:NEW_TOKENS] = 0
    q[:NEW_TOKENS, :, 0] = factor
    k[:NEW_TOKENS, :, 0] = column[CACHED:, None]
    position = np.arange(CACHED)
    k_pages[:, segments.page_table[0, position // 64], position % 64, 0] = column[:CACHED]
    return [jnp.asarray(x) for x in (q, k, v, k_pages, v_pages)], segments


CAP = 50.0
"""Of Gemma 2: what is capped lies up to 144 powers of two apart, which is more than the guard lets pass."""

CAPPED = [pytest.param(name, CAP, marks=() if "as high" in name else pytest.mark.full) for name in LOGITS]


@pytest.mark.parametrize(("name", "cap"), [*((name, None) for name in LOGITS), *CAPPED])
def test_adversarial_logits_give_what_the_reference_gives(name: str, cap: float | None, interpret: bool) -> None:
    inputs, segments = with_logits(LOGITS[name]())
    with on_host():
        expected = np.asarray(reference(*inputs, segments, scale=1.0, cap=cap))
    found = attend(inputs, segments, 1.0, interpret, cap)
    rows = live(segments)
    assert np.all(np.isfinite(expected[rows]))
    np.testing.assert_allclose(found[rows], expected[rows], rtol=ATTENTION["float32"], atol=ATTENTION["float32"])


FACTORS = {"usual": 1.0, "beyond the guard": 300.0, "overflowing": float(np.finfo(np.float32).max), "no number": np.nan}
ITEMS = st.lists(
    st.tuples(st.integers(1, 45), st.integers(0, 1), st.sampled_from(list(FACTORS))), min_size=2, max_size=5
)


def place(inputs: list[jax.Array], chosen: list[tuple[int, int, str]], salt: int) -> list[jax.Array]:
    """Give every item queries, keys and values of its own; its queries times its factor."""
    new = [np.array(x, np.float32) for x in inputs[:3]]
    row = 0
    for length, context, factor in chosen:
        random = np.random.default_rng((length, context, salt))
        for x in new:
            x[row : row + length] = random.normal(size=(length, *x.shape[1:]))
        with np.errstate(over="ignore"):
            new[0][row : row + length] *= FACTORS[factor]
        row += length
    return [*(jnp.asarray(x, inputs[0].dtype) for x in new), *inputs[3:]]


@pytest.mark.parametrize("cap", [None, pytest.param(CAP, marks=pytest.mark.full)])
@settings(max_examples=12, deadline=None)
@given(chosen=ITEMS, others=st.lists(st.sampled_from(list(FACTORS)), min_size=5, max_size=5), kept=st.integers(0, 4))
def test_a_neighbour_beyond_the_guard_changes_no_bit(
    chosen: list[tuple[int, int, str]], others: list[str], kept: int, cap: float | None, interpret: bool
) -> None:
    """Neither of rows that are computed once, nor of those that are computed anew: in its place stands another item."""
    kept = kept % len(chosen)
    together = (items(context, (CACHED, 70)[context], length) for length, context, _ in chosen)
    inputs, segments = step(*itertools.chain(*together), dtype="bfloat16")
    begin = sum(length for length, *_ in chosen[:kept])
    mine = slice(begin, begin + chosen[kept][0])
    neighbours = [
        (length, context, factor if index == kept else other)
        for index, ((length, context, factor), other) in enumerate(zip(chosen, others, strict=False))
    ]
    before, after = place(inputs, chosen, salt=0), place(inputs, neighbours, salt=1)
    for number in range(3):
        new = np.array(after[number])
        new[mine] = np.asarray(before[number])[mine]
        after[number] = jnp.asarray(new)
    found = [attend(given, segments, 1.0, interpret, cap)[mine] for given in (before, after)]
    assert np.all(np.isfinite(found[0])) == (chosen[kept][2] in ("usual", "beyond the guard"))
    assert_bits_equal(found[1], found[0])


def test_those_rows_are_beyond_the_guard(interpret: bool) -> None:
    """Weights relative to the own key's alone would overflow."""
    inputs, segments = step(*items(0, CACHED, NEW_TOKENS), dtype="bfloat16")
    placed = place(inputs, [(NEW_TOKENS, 0, "beyond the guard")], salt=0)
    q, k = (np.asarray(x, np.float64)[:NEW_TOKENS] for x in placed[:2])
    own = np.einsum("thd,td->th", q, k[:, 0])
    pages = np.asarray(placed[3], np.float64)[0, segments.page_table[0, :4]].reshape(-1, q.shape[-1])
    highest = np.einsum("thd,kd->thk", q, pages).max(-1)
    assert np.mean(highest - own > 1000) > 0.9
