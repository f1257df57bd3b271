"""Drawing, row by row: what a row gets depends neither on the rows beside it nor on how many there are."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from mis_core.requests import MAX_TOP_TOKENS, Sampling
from mis_core.runner.sampling import SAMPLED_ROWS, DrawArrays, DrawnTokens, next_tokens
from mis_core.scheduler.plan import SLOTS
from mis_core.scheduler.reading import Draws
from mis_testing.bits import assert_bits_equal

VOCAB = 3_000
_random = np.random.default_rng(5)
LOGITS = (2 * _random.standard_normal((SAMPLED_ROWS, VOCAB))).astype(np.float32)
WRITTEN = _random.integers(0, 3, (SLOTS, VOCAB)).astype(np.int32)
BIASES = {"bias_ids": np.array([7, 2_999], np.int32), "bias": np.array([9.0, -3.0], np.float32)}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0.5, "top_k": 900, "top_p": 0.99},
    {"temperature": 0.0, "presence_penalty": 1.5},
    {"temperature": 0.9, "frequency_penalty": 0.4, **BIASES},
    {"temperature": 0.0, **BIASES},
)


_programs = {count: jax.jit(partial(next_tokens, at_a_time=count)) for count in (1, 8)}


def run(logits: np.ndarray, count: int, how: DrawArrays, group: int = 1) -> tuple[DrawnTokens, jax.Array, jax.Array]:
    return _programs[group](logits, np.array([count], np.int32), how, np.full(SLOTS, -1, np.int32), WRITTEN)


def draw(rows: list[int], kinds: list[int], tops: list[int] | None = None, group: int = 1) -> DrawnTokens:
    """Draw after some rows of `LOGITS`, each in one of the ways of `KINDS`, at the place that has the row's number."""
    logits = np.full_like(LOGITS, np.nan)
    logits[: len(rows)] = LOGITS[rows]
    draws = []
    for row, kind, top in zip(rows, kinds, tops or [0] * len(rows), strict=True):
        one = np.array([row], np.int32)
        keys = np.array([[row, 1]], np.int32)
        draws.append(Draws(one, one, keys, one + 50, Sampling(keys, **KINDS[kind]), one, top_tokens=top))
    drawn, last, counts = run(logits, len(rows), DrawArrays.of(draws, 0, SAMPLED_ROWS), group)
    ids = np.asarray(drawn.ids)[: len(rows)]
    expected_last, expected_counts = np.full(SLOTS, -1), WRITTEN.copy()
    expected_last[rows] = ids
    penalised = [at for at, kind in enumerate(kinds) if {"presence_penalty", "frequency_penalty"} & KINDS[kind].keys()]
    expected_counts[np.array(rows)[penalised], ids[penalised]] += 1
    np.testing.assert_array_equal(last, expected_last)
    np.testing.assert_array_equal(counts, expected_counts)
    return DrawnTokens(*(np.asarray(values)[: len(rows)] for values in drawn))


@pytest.mark.parametrize("group", [pytest.param(1, marks=pytest.mark.full), 8])
def test_a_row_gets_the_same_alone_and_beside_any_others(group: int) -> None:
    rows = list(range(SAMPLED_ROWS))
    kinds = [row % len(KINDS) for row in rows]
    tops = [row % 3 * 5 for row in rows]
    together = draw(rows, kinds, tops, group)
    for count in (1, 2, 9):
        some = list(range(3, 3 + count))
        alone = draw(some, [kinds[row] for row in some], [tops[row] for row in some], group)
        for name in ("ids", "logits", "log_sums"):
            assert_bits_equal(getattr(alone, name), getattr(together, name)[some])
        for at, row in enumerate(some):
            assert_bits_equal(alone.top_ids[at, : tops[row]], together.top_ids[row, : tops[row]])
            assert_bits_equal(alone.top_logits[at, : tops[row]], together.top_logits[row, : tops[row]])


@pytest.mark.parametrize("kind", [0, 5, 7])
def test_greedy_tokens_and_logprobs_follow_the_logits(kind: int) -> None:
    drawn = draw(list(range(20)), [kind] * 20, [MAX_TOP_TOKENS] * 20)
    logits = LOGITS[:20].astype(np.float64)
    changed = logits.copy()
    if kind == 5:
        changed -= 1.5 * (WRITTEN[:20] > 0)
    elif kind == 7:
        changed[:, BIASES["bias_ids"]] += BIASES["bias"]
    np.testing.assert_array_equal(drawn.ids, changed.argmax(1))
    assert (kind == 0) == np.array_equal(drawn.ids, logits.argmax(1))
    np.testing.assert_array_equal(drawn.logits, logits[np.arange(20), drawn.ids])
    np.testing.assert_allclose(drawn.log_sums, np.logaddexp.reduce(logits, 1), rtol=1e-5)
    order = np.argsort(-logits, 1)[:, :MAX_TOP_TOKENS]
    np.testing.assert_array_equal(drawn.top_ids, order)
    np.testing.assert_array_equal(drawn.top_logits, np.take_along_axis(logits, order, 1))


def test_of_rows_that_nobody_draws_from_nothing_is_computed() -> None:
    drawn, _, _ = run(np.full_like(LOGITS, np.nan), 0, DrawArrays.of([], 0, SAMPLED_ROWS))
    assert np.isfinite(drawn.log_sums).all()
    drawn, _, _ = run(np.full_like(LOGITS, np.nan), 1, DrawArrays.of([], 0, SAMPLED_ROWS))
    assert np.isnan(drawn.log_sums).any()


def test_equal_logits_give_the_lowest_id() -> None:
    logits = np.zeros_like(LOGITS)
    logits[:, [70, 900, 2_000]] = 1.0
    drawn, _, _ = run(logits, 3, DrawArrays.of([], 0, SAMPLED_ROWS))
    assert drawn.ids[:3].tolist() == [70, 70, 70]


@pytest.mark.parametrize("spread", [0.1, 2.0])  # so alike that a thousand tokens are needed for a half, or not
@pytest.mark.parametrize("top_p", [1.0, 0.999, 0.5, 0.01])
@pytest.mark.parametrize("top_k", [0, 1, 40, 256, 257, 900, VOCAB])
def test_what_is_kept_is_what_sorting_keeps(top_k: int, top_p: float, spread: float) -> None:
    """Draw with so many keys that what is drawn is close to all that is kept, and never anything else."""
    rows, logits = SAMPLED_ROWS, np.repeat(LOGITS[:1] * spread / 2, SAMPLED_ROWS, 0)
    logits[:, 1_000] = logits[:, 20]  # equals
    weights = np.exp(logits[0].astype(np.float64) - logits[0].max())
    order = np.argsort(-weights, kind="stable")
    kept = weights >= weights[order[(top_k or VOCAB) - 1]]
    enough = np.searchsorted(np.cumsum((weights * kept)[order]), top_p * weights[kept].sum() * (1 - 1e-6))
    kept &= weights >= weights[order[min(enough, VOCAB - 1)]] * (1 - 1e-6)
    how = Sampling(np.zeros((rows, 2), np.int32), top_k=top_k, top_p=top_p)
    found: set[int] = set()
    for turn in range(4):
        numbers = np.arange(rows, dtype=np.int32)
        draws = [Draws(numbers, numbers, np.stack([numbers, numbers * 0 + turn], 1), numbers, how)]
        drawn, _, _ = run(logits, rows, DrawArrays.of(draws, 0, rows))
        found |= set(np.asarray(drawn.ids).tolist())
    assert found <= set(np.flatnonzero(kept).tolist())
    assert len(found) > min(0.3 * kept.sum(), 20) or top_k == 1
