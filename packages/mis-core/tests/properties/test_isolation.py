"""Isolation: what else is scored never changes the bits of an item's scores."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core import Engine
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal

LABELS = [5, 9, 100]
VOCAB = 300


@pytest.fixture(scope="module", params=["qwen3-float32", "qwen3-bfloat16", "llama-bfloat16"])
def engines(request, tmp_path_factory) -> Iterator[list[Engine]]:
    """One model behind two token budgets."""
    family, dtype = request.param.split("-")
    path = tiny_checkpoint(tmp_path_factory.mktemp("isolation") / family, family=family)
    engines = [
        Engine.from_pretrained(path, dtype=dtype, context_length=2048, chunked_prefill_size=budget, skip_warmup=True)
        for budget in (256, 1024)
    ]
    yield engines
    for engine in engines:
        engine.close()


def ids(seed: int, length: int) -> list[int]:
    return np.random.default_rng((seed, length)).integers(0, VOCAB, length).tolist()


items_strategy = st.lists(
    st.tuples(st.integers(0, 99), st.sampled_from([0, 1, 2, 19, 20, 33, 64, 150, 300])), max_size=25
)


@settings(max_examples=12, deadline=None)
@given(
    query=st.tuples(st.integers(0, 9), st.sampled_from([1, 63, 64, 333, 777])),
    chosen=st.tuples(st.integers(0, 99), st.sampled_from([0, 1, 7, 20, 65, 257, 400])),
    others=items_strategy,
    changed=items_strategy,
    order=st.randoms(use_true_random=False),
    softmax=st.booleans(),
)
def test_scores_have_the_same_bits_whatever_the_neighbours(
    engines, query, chosen, others, changed, order, softmax
) -> None:
    """Alone, among neighbours, and among other neighbours of other lengths in another order, at any budget."""
    item = ids(*chosen)

    def score(engine: Engine, neighbours: list) -> np.ndarray:
        at = order.randrange(len(neighbours) + 1)
        items = [ids(*n) for n in neighbours]
        result = engine.score(ids(*query), [*items[:at], item, *items[at:]], LABELS, apply_softmax=softmax)
        return result.scores[at]

    alone = score(engines[0], [])
    for neighbours in (others, changed):
        for engine in engines:
            order.shuffle(neighbours)
            assert_bits_equal(score(engine, neighbours), alone)


def test_a_changed_item_changes_its_own_score(engines) -> None:
    before = engines[0].score(ids(1, 100), [ids(1, 9), ids(2, 9)], LABELS).scores
    after = engines[0].score(ids(1, 100), [ids(1, 9), ids(3, 9)], LABELS).scores
    assert_bits_equal(before[0], after[0])
    assert np.abs(np.log(before[1]) - np.log(after[1])).max() > 1e-2
