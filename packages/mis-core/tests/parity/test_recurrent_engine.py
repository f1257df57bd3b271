"""Models with recurrent layers behind the engine: scores against transformers, states kept, evicted and shared."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mis_core import Engine
from mis_core.models.config import read_model_config
from mis_core.models.layers import kept_elements
from mis_core.runner.memory import CPU_SLOTS, state_bytes
from mis_core.scheduler.plan import PAGE_SIZE
from mis_core.scheduler.query_lock import QueryLock
from mis_core.scheduler.recurrence import EMPTY, StateUse
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

LABELS = [271, 269, 276, 5]
OPTIONS = {"context_length": 1024, "chunked_prefill_size": 256, "progress": False, "skip_warmup": True}


def ids(seed: int, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng((seed, *lengths))
    return [rng.integers(1, 900, length).tolist() for length in lengths]


ITEMS = ids(3, 20, 1, 64, 63, 65)
LONG = ids(4, 150)  # longer than a step takes whole: in pages, and over two steps behind most queries


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("recurrent") / "model", "qwen3_5", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(path, dtype="float32", **OPTIONS) as engine:
        yield engine
        engine.check()


@pytest.fixture(autouse=True)
def _nothing_cached(engine: Engine) -> None:
    engine.flush_cache()


@pytest.fixture(scope="module")
def oracle(path: Path) -> PointwiseOracle:
    return PointwiseOracle(path, "float32")


def scores(engine: Engine, query: list[int], items: list[list[int]], **layout: object) -> np.ndarray:
    return np.array(engine.score(query, items, LABELS, apply_softmax=True, **layout).scores)


def check(engine: Engine, oracle: PointwiseOracle, query: list[int], items: list[list[int]], **layout: object) -> None:
    expected = oracle.score([query + item for item in items], LABELS, apply_softmax=True)
    np.testing.assert_allclose(scores(engine, query, items, **layout), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [1, 65, 300])
def test_scores_are_those_of_transformers_cold_and_warm(engine, oracle, length: int) -> None:
    [query] = ids(length, length)
    check(engine, oracle, query, ITEMS + LONG)
    cold = scores(engine, query, ITEMS + LONG)  # known by now
    engine.flush_cache()
    assert_bits_equal(scores(engine, query, ITEMS + LONG), cold)
    assert_bits_equal(scores(engine, query, ITEMS[:1])[0], cold[0])


@pytest.mark.full
@pytest.mark.parametrize(
    "length", [2, 3, 4, 5, 62, 63, 64, 66, 127, 128, 129, 191, 192, 255, 256, 257, 511, 512, 513, 760]
)
def test_lengths_around_every_edge(engine, oracle, length: int) -> None:
    [query] = ids(length, length)
    check(engine, oracle, query, ITEMS + LONG)
    check(engine, oracle, [*query, 7], ITEMS)


@pytest.mark.full
@pytest.mark.parametrize("length", [1000, 4096, 4999])
def test_long_queries(path, oracle, length: int) -> None:
    with Engine.from_pretrained(path, dtype="float32", **OPTIONS | {"context_length": 5200}) as engine:
        [query] = ids(length, length)
        check(engine, oracle, query, ITEMS + LONG)


@pytest.mark.parametrize("algorithm", ["serial", "packed", "prefill_extend"])
def test_every_layout(engine, oracle, algorithm: str) -> None:
    check(engine, oracle, *ids(5, 130), ITEMS + LONG, scoring_algorithm=algorithm)


def test_a_text_of_one_repeated_token(engine, oracle) -> None:
    """Equal keys make the triangular system of a chunk as bad as it gets."""
    check(engine, oracle, [9] * 400, [[9] * 64, [9] * 200, [5]])


def test_items_that_begin_before_the_query_ends(engine, oracle) -> None:
    """An empty item is scored at the query's last token, which a state before its last page precedes."""
    [query] = ids(6, 130)
    check(engine, oracle, query, [[], *ITEMS[:2]])


def test_a_longer_query_goes_on_from_a_state(engine, oracle) -> None:
    [query] = ids(7, 700)
    scores(engine, query[:300], ITEMS)
    before = engine.statistics()["cache_hit_tokens"]
    check(engine, oracle, query, ITEMS)
    assert engine.statistics()["cache_hit_tokens"] - before == 256


def test_memory_is_what_was_planned_for_pages_and_states(engine: Engine, path: Path) -> None:
    config, memory, counts = read_model_config(path), engine.memory(), engine.statistics()
    assert memory["states/memory"].bytes + memory["states/inputs"].bytes == counts["states"] * state_bytes(config, 1)
    of_token = 4 * kept_elements(config.layers, config.attention.head_dim)  # float32
    pages = memory["cache/keys"].bytes + memory["cache/values"].bytes
    assert pages == counts["pages"] * PAGE_SIZE * of_token
    assert (counts["states"], of_token) == (CPU_SLOTS, 4 * 2 * 2 * 2 * 32)  # two of four layers have pages


@pytest.mark.full
def test_states_come_and_go_over_many_requests(engine, oracle) -> None:
    """More prefixes than slots: what was evicted is computed again, with the same bits, and memory stays as it is."""
    queries = ids(8, *range(30, 330, 5))
    first = [scores(engine, query, ITEMS[:1]) for query in queries]
    memory = engine.memory()
    order = np.random.default_rng(0)
    for number in order.integers(0, len(queries), 2000).tolist():
        assert_bits_equal(scores(engine, queries[number], ITEMS[:1]), first[number])
    assert engine.memory() == memory
    engine.check()


def _states(*, wrong: int) -> object:
    right = QueryLock.states_after

    def planted(lock: QueryLock, tokens: np.ndarray, shard: int) -> StateUse | None:
        use = right(lock, tokens, shard)
        assert use is not None
        held = sorted(lock._locks[shard].states.items())
        slots = {"before the last page": held[0][1].slot, "nothing": EMPTY}
        return StateUse(np.full(len(tokens), list(slots.values())[wrong], np.int32))

    return planted


@pytest.mark.parametrize("wrong", [0, 1], ids=["the state before the last page", "no state"])
def test_another_state_is_noticed(engine, oracle, monkeypatch, wrong: int) -> None:
    monkeypatch.setattr(QueryLock, "states_after", _states(wrong=wrong))
    with pytest.raises(AssertionError):
        check(engine, oracle, *ids(9, 130), ITEMS[:2])


@pytest.mark.full
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"mask_impl": "dense"}], ids=["bfloat16", "dense"])
def test_other_options(path, options: dict) -> None:
    options = {"dtype": "float32"} | options
    [query] = ids(10, 300)
    with Engine.from_pretrained(path, **OPTIONS | options) as engine:
        expected = PointwiseOracle(path, options["dtype"]).score(
            [query + item for item in ITEMS], LABELS, apply_softmax=True
        )
        assert_scores_close(scores(engine, query, ITEMS), expected, options["dtype"])
