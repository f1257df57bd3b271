"""Isolation: what else is scored, and how, never changes the bits of an item's scores."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core import Engine
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal

LABELS = [5, 9, 100]
VOCAB = 300


# Token budgets whose steps take the chosen items whole, or page them, alike; every size of a step up to the larger is
# compiled. A step of 256 tokens pages items of more than 64.
LARGE, SMALL = (1024, 768), (512, 256)
MODELS = [
    pytest.param(("qwen3", {}, "auto", SMALL), id="qwen3-auto"),  # the type that engines have here
    *(
        pytest.param((family, {}, dtype, LARGE), marks=pytest.mark.full, id=f"{family}-{dtype}-large steps")
        for family, dtype in (("qwen3", "bfloat16"), ("qwen3", "float32"), ("llama", "bfloat16"))
    ),
    *(
        pytest.param((family, {"sliding_window": 70}, dtype, SMALL), marks=pytest.mark.full, id=f"{family}-{dtype}")
        for family in ("ministral", "gemma2", "gemma3")
        for dtype in ("bfloat16", "float32")
    ),
    pytest.param(("qwen3_5", {}, "bfloat16", SMALL), marks=pytest.mark.full, id="qwen3_5-bfloat16"),
    pytest.param(("qwen3_5", {}, "float32", LARGE), marks=pytest.mark.full, id="qwen3_5-float32-large steps"),
]


@pytest.fixture(scope="module", params=MODELS)
def engines(request, tmp_path_factory) -> Iterator[list[Engine]]:
    """One model behind two token budgets, the second with hardly any cache, so that it evicts all the time."""
    family, sizes, dtype, (more, fewer) = request.param
    path = tiny_checkpoint(tmp_path_factory.mktemp("isolation") / family, family=family, **sizes)
    options = {"dtype": dtype, "context_length": 2048, "skip_warmup": True, "progress": False}
    least = (2 if family == "qwen3_5" else 1) * 2048 + 64  # with recurrent layers an item may need its query again
    engines = [
        Engine.from_pretrained(path, chunked_prefill_size=more, **options),
        Engine.from_pretrained(path, chunked_prefill_size=fewer, max_total_tokens=least, **options),
    ]
    yield engines
    for engine in engines:
        engine.check()
        engine.close()


def ids(seed: int, length: int) -> list[int]:
    return np.random.default_rng((seed, length)).integers(0, VOCAB, length).tolist()


items_strategy = st.lists(
    st.tuples(st.integers(0, 99), st.sampled_from([0, 1, 2, 19, 20, 33, 64, 150, 300])), max_size=25
)
queries = st.tuples(st.integers(0, 9), st.sampled_from([1, 63, 64, 333, 777]))
layouts = st.fixed_dictionaries(
    {
        "scoring_algorithm": st.sampled_from(["auto", "packed", "prefill_extend"]),
        "multi_item_scoring_chunk_size": st.sampled_from([0, 1, 7]),
    }
)


@settings(max_examples=5, deadline=None)
@given(
    query=queries,
    chosen=st.tuples(st.integers(0, 99), st.sampled_from([0, 1, 7, 20, 64, 257, 400])),
    others=items_strategy,
    changed=items_strategy,
    strangers=st.lists(st.tuples(queries, items_strategy.filter(len)), max_size=3),
    layout=layouts,
    order=st.randoms(use_true_random=False),
    softmax=st.booleans(),
)
def test_scores_have_the_same_bits_whatever_the_neighbours(
    engines, query, chosen, others, changed, strangers, layout, order, softmax
) -> None:
    """Alone; among neighbours, then others of other lengths in another order; with other requests in the batch.

    Whether the query is cached, how items are chunked, and the token budget change nothing either.
    """
    item = ids(*chosen)

    def score(engine: Engine, neighbours: list, **layout) -> np.ndarray:
        at = order.randrange(len(neighbours) + 1)
        items = [ids(*n) for n in neighbours]
        items = [*items[:at], item, *items[at:]]
        return engine.score(ids(*query), items, LABELS, apply_softmax=softmax, **layout).scores[at]

    def disturb(engine: Engine, stranger: tuple) -> None:
        engine.score(ids(*stranger[0]), [ids(*n) for n in stranger[1]], LABELS)

    engines[0].flush_cache()
    alone = score(engines[0], [])
    for neighbours in (others, changed):
        for engine in engines:
            order.shuffle(neighbours)
            with ThreadPoolExecutor(4) as pool:
                crowd = [pool.submit(disturb, engine, stranger) for stranger in strangers]
                assert_bits_equal(score(engine, neighbours, **layout), alone)
                for each in crowd:
                    each.result()
            engine.check()


def test_a_changed_item_changes_its_own_score(engines) -> None:
    before = engines[0].score(ids(1, 100), [ids(1, 9), ids(2, 9)], LABELS).scores
    after = engines[0].score(ids(1, 100), [ids(1, 9), ids(3, 9)], LABELS).scores
    assert_bits_equal(before[0], after[0])
    assert np.abs(np.log(before[1]) - np.log(after[1])).max() > 1e-2
