"""What an engine must show first on a TPU or GPU: scores, layouts, isolation, the cache on the device, the head.

On other machines the same bodies run, with a TPU's and a GPU's kernels emulated. Activations are bfloat16, as
accelerators multiply. Bits are compared between steps of one layout: what accelerators promise less, agrees within
tolerances.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import numpy as np
import pytest

from mis_core import Engine
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.compilations import count_compilations
from mis_testing.oracle import PointwiseOracle
from mis_testing.published import SHAPES
from mis_testing.tolerances import assert_scores_close

LABELS = [271, 269, 276, 5]
OPTIONS = {"dtype": "bfloat16", "context_length": 1024, "chunked_prefill_size": 256, "progress": False}
UNWARMED = OPTIONS | {"skip_warmup": True}
CACHE_TOKENS = 2048
LAYOUTS = {name: {"scoring_algorithm": name} for name in ("serial", "packed", "prefill_extend")}
LAYOUTS["dense"] = {"scoring_algorithm": "packed", "mask_impl": "dense"}


def ids(seed: int, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 900, n).tolist() for n in lengths]


# Steps of one size: every other size is compiled, and emulated kernels compile slowly. Last steps have more than 128
# rows, and so the size of the others.
[QUERY], [SHORT] = ids(1, 700), ids(2, 100)
ITEMS = ids(3, 20, 1, 5, 64, 40, 63, 60)
FEW = ITEMS[:5]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("accelerators") / "model")


Device = Callable[[], AbstractContextManager]
TIERS = [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("tpu", marks=pytest.mark.tpu)]


@pytest.fixture(scope="module", params=TIERS)
def device(request, tpu: Device, gpu: Device) -> Device:
    """Within `with device():`, engines are made for the device of the tier."""
    return tpu if request.param == "tpu" else gpu


@pytest.fixture(scope="module")
def engine(path: Path, device: Callable[[], AbstractContextManager]) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch, device():
        patch.setattr(TpuBackend, "mixed_context", 512)  # the long query is longer, the short one is not
        with Engine.from_pretrained(path, max_total_tokens=CACHE_TOKENS, **UNWARMED) as engine:
            yield engine
            engine.check()


@pytest.fixture(scope="module")
def oracle(path: Path) -> PointwiseOracle:
    return PointwiseOracle(path, "bfloat16")


def test_the_tiers_kernel_computes(engine: Engine, request: pytest.FixtureRequest) -> None:
    assert engine._loop._runner._backend.name == request.node.callspec.params["device"]


@pytest.fixture(autouse=True)
def _nothing_cached(engine: Engine) -> None:
    engine.flush_cache()


def softmax(engine: Engine, query: list[int], items: list[list[int]], **layout) -> np.ndarray:
    return engine.score(query, items, LABELS, apply_softmax=True, **layout).scores


def assert_agree(found: np.ndarray, expected: np.ndarray) -> None:
    assert_scores_close(found, expected, "bfloat16", reference="pointwise")


def test_one_step_agrees_with_transformers(engine: Engine, oracle: PointwiseOracle) -> None:
    before = engine.statistics()["steps"]
    found = engine.score(SHORT, FEW, LABELS, return_token_logprobs=True)
    assert engine.statistics()["steps"] == before + 1
    expected = oracle.label_logprobs([SHORT + item for item in FEW], LABELS)
    assert_scores_close(found.token_logprobs, expected, "bfloat16", "logprob")


def test_short_contexts_share_steps_of_their_own_on_tpus(
    engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TPU pays for each context of its usual steps; a GPU has one kind."""
    kinds, run = [], type(engine._loop._runner).run
    monkeypatch.setattr(engine._loop._runner, "run", lambda plan: kinds.append(plan.is_mixed) or run(runner, plan))
    runner = engine._loop._runner
    softmax(engine, SHORT, FEW)
    softmax(engine, QUERY, FEW)
    assert kinds[0] == (request.node.callspec.params["device"] == "tpu")
    assert not any(kinds[1:])


@pytest.mark.full
def test_many_callers_score_as_each_does_alone(engine: Engine) -> None:
    callers = [(ids(20 + n, 40)[0], ids(40 + n, 15)) for n in range(3)]
    alone = [softmax(engine, *caller) for caller in callers]
    engine.flush_cache()
    with ThreadPoolExecutor(len(callers)) as pool:
        together = list(pool.map(lambda caller: softmax(engine, *caller), callers))
    for found, expected in zip(together, alone, strict=True):
        assert_agree(found, expected)


def test_a_query_in_chunks_agrees_with_transformers(engine: Engine, oracle: PointwiseOracle) -> None:
    before = engine.statistics()["steps"]
    found = softmax(engine, QUERY, ITEMS)
    assert engine.statistics()["steps"] >= before + 3
    expected = oracle.score([QUERY + item for item in ITEMS], LABELS, apply_softmax=True)
    assert_scores_close(found, expected, "bfloat16")


def test_a_cached_query_agrees_with_transformers(engine: Engine, oracle: PointwiseOracle) -> None:
    softmax(engine, QUERY, ITEMS[:1])
    found = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True)
    assert found.usage.cached_tokens == len(QUERY)
    expected = oracle.score([QUERY + item for item in ITEMS], LABELS, apply_softmax=True)
    assert_scores_close(found.scores, expected, "bfloat16")


@pytest.mark.full
def test_an_item_longer_than_a_step_agrees_with_transformers(engine: Engine, oracle: PointwiseOracle) -> None:
    items = ids(4, 320)
    expected = oracle.score([QUERY + item for item in items], LABELS, apply_softmax=True)
    assert_scores_close(softmax(engine, QUERY, items), expected, "bfloat16")


@pytest.mark.parametrize("layout", ["packed", "prefill_extend"])
def test_each_layout_agrees_with_serial(engine: Engine, layout: str) -> None:
    serial = softmax(engine, QUERY, ITEMS, **LAYOUTS["serial"])
    engine.flush_cache()
    assert_agree(softmax(engine, QUERY, ITEMS, **LAYOUTS[layout]), serial)


def test_dense_masks_agree_with_segments(engine: Engine) -> None:
    dense = engine.score(SHORT, FEW, LABELS, apply_softmax=True, **LAYOUTS["dense"])
    assert "dense" in dense.algorithm
    engine.flush_cache()
    assert_agree(softmax(engine, SHORT, FEW, **LAYOUTS["packed"]), dense.scores)


@pytest.mark.parametrize("fault", ["swapped items", "another query"])
def test_the_comparison_notices(engine: Engine, fault: str) -> None:
    right = softmax(engine, QUERY, ITEMS)
    query, items = (QUERY, ITEMS[::-1]) if fault == "swapped items" else (ids(9, len(QUERY))[0], ITEMS)
    with pytest.raises(AssertionError, match="differ by more"):
        assert_agree(softmax(engine, query, items), right)


def test_bits_do_not_depend_on_what_other_items_say(engine: Engine) -> None:
    others = ids(5, *map(len, ITEMS))
    for at, item in enumerate(ITEMS):
        engine.flush_cache()
        before = softmax(engine, QUERY, ITEMS)
        engine.flush_cache()
        after = softmax(engine, QUERY, [*others[:at], item, *others[at + 1 :]])
        assert_bits_equal(after[at], before[at])
        assert not np.array_equal(np.delete(after, at, 0), np.delete(before, at, 0))


@pytest.mark.full
def test_bits_do_not_depend_on_earlier_cache_contents(engine: Engine) -> None:
    before = softmax(engine, QUERY, ITEMS)
    for seed in range(3):
        softmax(engine, *ids(seed + 10, 500), ids(seed + 20, 30, 200))
    engine.flush_cache()
    assert_bits_equal(softmax(engine, QUERY, ITEMS), before)


def test_bits_do_not_depend_on_what_was_evicted_meanwhile(engine: Engine) -> None:
    before = softmax(engine, QUERY, ITEMS)
    evicted = engine.statistics()["evicted_pages"]
    for seed in range(CACHE_TOKENS // 900 + 1):
        softmax(engine, *ids(seed + 30, 900), ITEMS[:1])
    assert engine.statistics()["evicted_pages"] > evicted
    again = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True)
    assert again.usage.cached_tokens < len(QUERY)
    assert_agree(again.scores, before)
    engine.flush_cache()
    assert_bits_equal(softmax(engine, QUERY, ITEMS), before)


def test_bits_are_the_same_every_time(engine: Engine) -> None:
    softmax(engine, QUERY, ITEMS)
    first, second = (softmax(engine, QUERY, ITEMS) for _ in range(2))
    assert_bits_equal(second, first)


def test_equal_items_have_the_bits_of_one(engine: Engine) -> None:
    scores = softmax(engine, QUERY, [ITEMS[0], ITEMS[4], ITEMS[0]])
    assert_bits_equal(scores[2], scores[0])


def test_requests_in_one_batch_agree_with_each_alone(engine: Engine) -> None:
    requests = [(*ids(seed + 40, 190), ids(seed + 50, 20, 35, 9)) for seed in range(6)]
    alone = [softmax(engine, *request) for request in requests]
    engine.flush_cache()
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda request: softmax(engine, *request), requests))
    for found, expected in zip(together, alone, strict=True):
        assert_agree(found, expected)


def test_more_items_than_a_step_and_more_pairs_than_a_head_call(engine: Engine) -> None:
    items = ids(60, *[2] * 400)
    scores = softmax(engine, QUERY, items)
    engine.flush_cache()
    assert_agree(scores[[0, 150, 399]], softmax(engine, QUERY, [items[0], items[150], items[399]]))


def test_an_empty_item_is_scored_at_the_querys_last_token(engine: Engine) -> None:
    empty = softmax(engine, QUERY, [[]])
    engine.flush_cache()
    assert_agree(softmax(engine, QUERY[:-1], [QUERY[-1:]]), empty)


def test_an_item_as_long_as_the_context_allows(engine: Engine) -> None:
    query, item = ids(70, 768, 256)
    whole = softmax(engine, query, [item])
    engine.flush_cache()
    assert_agree(softmax(engine, query, [item], **LAYOUTS["serial"]), whole)


def test_full_vocabulary_probabilities_sum_to_one(engine: Engine) -> None:
    labels = list(range(engine.vocab_size))
    assert engine.score(QUERY, ITEMS[:1], labels).scores.sum() == pytest.approx(1, abs=1e-2)


def test_labels_in_another_order_have_the_same_bits(engine: Engine) -> None:
    there = engine.score(QUERY, ITEMS, LABELS).scores
    back = engine.score(QUERY, ITEMS, [*LABELS[::-1], LABELS[0]]).scores
    assert_bits_equal(back[:, 3], back[:, 4])
    engine.flush_cache()
    assert_bits_equal(engine.score(QUERY, ITEMS, [*LABELS, *LABELS]).scores[:, :4], there)


@pytest.mark.full
def test_nothing_compiles_after_warm_up(path: Path, device: Callable[[], AbstractContextManager]) -> None:
    rng = np.random.default_rng(0)
    with device(), Engine.from_pretrained(path, max_total_tokens=CACHE_TOKENS, **OPTIONS) as engine:
        with count_compilations() as compilations:
            for seed in range(10):
                [query] = ids(seed + 80, rng.integers(1, 700))
                items = ids(seed, *rng.integers(0, 60, rng.integers(1, 30)))
                engine.score(query, items, LABELS, apply_softmax=bool(seed % 2))
        assert compilations.count == 0


def test_the_cache_lies_on_the_device_in_the_models_type(engine: Engine) -> None:
    memory = engine.memory()
    for name in ("cache/keys", "cache/values"):
        assert memory[name].bytes == 2 * np.prod(memory[name].shape)
    assert memory["cache/keys"].shape[1:3] == (2 * CACHE_TOKENS // 64, 64)


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        *((family, {}) for family in ("qwen2", "llama", "mistral", "smollm3", "gemma2", "gemma3")),
        ("ministral", {"sliding_window": 40}),
        ("qwen3_5", {"linear_key_head_dim": 128, "linear_value_head_dim": 128}),  # as wide as kernels take heads
    ],
)
def test_other_families_agree_with_transformers(family: str, sizes: dict, device: Callable, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", family, **sizes)
    with device(), Engine.from_pretrained(path, max_total_tokens=2 * CACHE_TOKENS, **UNWARMED) as engine:
        found = softmax(engine, QUERY, ITEMS)
    expected = PointwiseOracle(path, "bfloat16").score([QUERY + item for item in ITEMS], LABELS, apply_softmax=True)
    assert_scores_close(found, expected, "bfloat16")


@pytest.mark.full
def test_a_request_of_published_sizes_agrees_with_transformers(device: Callable, tmp_path: Path) -> None:
    """Qwen3-0.6B with random weights: items of 20 tokens, as the canonical request has. Two layers on a CPU, where
    emulated kernels take memory for each.
    """
    sizes = SHAPES["qwen3-0.6b"] | ({"num_hidden_layers": 2} if jax.default_backend() == "cpu" else {})
    path = tiny_checkpoint(tmp_path / "model", **sizes)
    items = ids(90, *[20] * 25)
    with device(), Engine.from_pretrained(path, max_total_tokens=CACHE_TOKENS, **UNWARMED) as engine:
        found = softmax(engine, QUERY, items)
    chosen = [0, 12, 24]
    exact, theirs = (
        PointwiseOracle(path, dtype).score([QUERY + items[n] for n in chosen], LABELS, apply_softmax=True)
        for dtype in ("float32", "bfloat16")
    )
    # Over 28 layers roundings add up, in PyTorch as here: at most twice its error.
    assert np.abs(found[chosen] - exact).max() <= max(0.02, 2 * np.abs(theirs - exact).max())
