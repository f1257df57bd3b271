"""The engine under many requests: nothing compiles, nothing leaks, and sharing steps changes no bit."""

import gc
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from mis_core import Engine
from mis_core.errors import ConfigError, EngineUnavailable
from mis_core.runner.step import Cache
from mis_core.tasks.score.task import parse_score_request
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.compilations import count_compilations
from mis_testing.options import SMALL_ENGINE

LABELS = [7, 8]
FULL = pytest.mark.full


@pytest.fixture(scope="module")
def warm(tmp_path_factory) -> Iterator[Engine]:
    """A compiled engine with room for queries of 4,000 tokens."""
    path = tiny_checkpoint(tmp_path_factory.mktemp("load") / "model")
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | {"skip_warmup": False}) as engine:
        yield engine
        engine.check()


def random_request(rng: np.random.Generator, most_items: int, longest_query: int) -> dict:
    count = int(np.exp(rng.uniform(0, np.log(most_items + 0.5))))
    lens = rng.integers(0, 24, count)
    lens[rng.random(count) < 0.002] = 300
    if rng.random() < 0.02:
        lens[:] = 20
    query = rng.integers(0, 300, int(rng.integers(1, longest_query - 320))).tolist()
    return {
        "query": query if rng.random() < 0.7 else query[:500],
        "items": [rng.integers(0, 300, n).tolist() for n in lens],
        "label_token_ids": rng.integers(0, 300, int(rng.integers(1, 6))).tolist(),
        "apply_softmax": bool(rng.integers(2)),
        "scoring_algorithm": str(rng.choice(["auto", "auto", "auto", "packed", "prefill_extend"])),
    }


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=[FULL, pytest.mark.timeout(3600)])])
def test_random_requests_compile_nothing(warm: Engine, count: int) -> None:
    """1 to 1,000 items behind queries of 1 to 4,000 tokens, four at a time."""
    rng = np.random.default_rng(0)
    requests = [random_request(rng, most_items=1000, longest_query=4000) for _ in range(count - 2)]
    ids = np.arange(20_000) % 300
    requests += [
        {"query": ids[:4000].tolist(), "items": [[1]], "label_token_ids": LABELS},
        {"query": [1], "items": ids.reshape(1000, 20).tolist(), "label_token_ids": LABELS},
    ]
    with count_compilations() as compilations, ThreadPoolExecutor(4) as pool:
        for request, result in zip(requests, pool.map(lambda request: warm.score(**request), requests), strict=True):
            assert result.scores.shape == (len(request["items"]), len(request["label_token_ids"]))
            assert np.isfinite(result.scores).all()
    assert compilations.count == 0
    assert sum(len(request["items"]) for request in requests) > 50 * count


@pytest.mark.parametrize(("count", "callers"), [(12, [16]), pytest.param(48, [1, 2, 4, 8, 16], marks=FULL)])
def test_concurrent_callers_get_the_bits_they_would_get_alone(warm: Engine, count: int, callers: list[int]) -> None:
    """Requests of 3, 30 and 500 items at 0.4, 0.4 and 0.2, with and without softmax."""
    rng = np.random.default_rng(1)
    queries = [rng.integers(0, 300, n).tolist() for n in (200, 200, 900, 64)]

    def request(size: int) -> dict:
        items = rng.integers(0, 300, (size, 12)).tolist()
        query = queries[int(rng.integers(len(queries)))]
        return {"query": query, "items": items, "label_token_ids": LABELS, "apply_softmax": bool(rng.integers(2))}

    requests = [request(int(size)) for size in rng.choice([3, 30, 500], count, p=[0.4, 0.4, 0.2])]
    alone = [warm.score(**each).scores for each in requests]
    for at_once in callers:
        warm.flush_cache()
        with ThreadPoolExecutor(at_once) as pool:
            together = list(pool.map(lambda each: warm.score(**each).scores, requests))
        for found, expected in zip(together, alone, strict=True):
            assert_bits_equal(found, expected)


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=[FULL, pytest.mark.timeout(3600)])])
def test_memory_stays_bounded_over_thousands_of_requests(warm: Engine, count: int) -> None:
    rng = np.random.default_rng(2)

    def some(count: int) -> None:
        with ThreadPoolExecutor(8) as pool:
            queries = [rng.integers(0, 300, int(n)).tolist() for n in rng.integers(1, 150, count)]
            for result in pool.map(lambda query: warm.score(query, [[1], [2, 3]], LABELS, apply_softmax=True), queries):
                assert result.scores.shape == (2, 2)

    some(min(1000, count // 2))
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    some(count - min(1000, count // 2))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024, f"the peak rose by {grown} KiB"
    state = warm.statistics()
    assert state["held_pages"] == 0
    assert state["cached_pages"] + state["free_pages"] == state["pages"]
    assert state["evicted_pages"] > 0


def test_a_score_is_one_pass_without_decoding(warm: Engine) -> None:
    """Each token of the prompt is computed once, and nothing besides: no token is sampled or appended."""
    warm.flush_cache()
    before = warm.statistics()["new_tokens"]
    result = warm.score(list(range(100)), [[1, 2, 3], [4, 5]], LABELS)
    assert warm.statistics()["new_tokens"] - before == result.usage.prompt_tokens == 105


def test_cancelled_requests_free_what_they_hold(warm: Engine) -> None:
    rng = np.random.default_rng(3)
    query, items = rng.integers(0, 300, 3000), rng.integers(0, 300, (200, 20))
    request = parse_score_request(
        {"query": query, "items": items, "label_token_ids": LABELS}, None, warm.limits
    ).request
    futures = [warm.submit(request) for _ in range(6)]
    assert [future.cancel() for future in futures[::2]] == [True] * 3
    for future in futures[1::2]:
        assert future.result(timeout=120).logits.shape == (200, 2)
    assert warm.score([1, 2], [[3]], LABELS).scores.shape == (1, 2)
    warm.check()
    assert warm.statistics()["held_pages"] == 0


def test_a_failing_step_takes_only_those_it_computed(warm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = warm.score(list(range(50)), [[1], [2]], LABELS).scores
    runner = warm._loop._runner
    assert runner is not None
    monkeypatch.setattr(runner, "run", lambda plan: (_ for _ in ()).throw(RuntimeError("the device is gone")))
    with pytest.raises(EngineUnavailable, match="lost this request: RuntimeError"):
        warm.score(list(range(50)), [[1], [2]], LABELS)
    monkeypatch.undo()
    again = warm.score(list(range(50)), [[1], [2]], LABELS)
    assert again.usage.cached_tokens == 0
    assert_bits_equal(again.scores, expected)
    warm.check()


def test_a_new_cache_replaces_the_old_one_and_is_never_beside_it(warm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = warm._loop._runner
    assert runner is not None
    old, allocate = runner._cache, runner._empty_cache
    freed: list[bool] = []

    def allocated() -> Cache:
        freed.extend(array.is_deleted() for array in jax.tree.leaves(old))
        return allocate()

    def fails(plan: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(runner, "_empty_cache", allocated)
    monkeypatch.setattr(runner, "run", fails)
    with pytest.raises(EngineUnavailable):
        warm.score([1, 2], [[3]], LABELS)
    monkeypatch.undo()
    assert warm.score([1, 2], [[3]], LABELS).scores.shape == (1, 2)
    assert freed == [True, True]


def test_a_cache_larger_than_memory_is_a_config_error(warm: Engine) -> None:
    with pytest.raises(ConfigError, match=r"cache of 10000000000\d+ tokens could not be allocated"):
        Engine.from_pretrained(warm.directory, max_total_tokens=10**13, context_length=512, skip_warmup=True)
