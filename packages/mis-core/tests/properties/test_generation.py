"""What is written depends on nobody else: tokens and log-probabilities have the same bits alone and among others.

Nor does what is written beside them change scores, whatever is read of them.
"""

import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from mis_core import Engine
from mis_core.requests import Sampling, ScoreRequest
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoice
from mis_core.tasks.text.generation import GenerateResult
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal

VOCAB = 300
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"seed": 5},
    {"seed": 6, "top_p": 0.8, "top_k": 40, "min_p": 0.01, "temperature": 0.7},
    {"seed": 7, "presence_penalty": 0.6, "frequency_penalty": 0.4, "logit_bias": {"7": 3}},
    {"seed": 8, "n": 3, "logprobs": 4},
)
SCORED = (
    (0, 200, [1, 20, 64], "labels"),
    (1, 333, [20, 300], "all logits"),
    (2, 65, [20, 64, 1], "prompt"),
    (3, 1, [20] * 6, "draw"),
)


LEAST_TOKENS = {"qwen3": 1024 + 128, "qwen3_5": 2048 + 128}
"""Tokens of the smallest cache that has room for a context of 1,024; with recurrent layers, for two."""


@pytest.fixture(scope="module", params=["qwen3", pytest.param("qwen3_5", marks=pytest.mark.full)])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """One model with much cache, and with so little that sequences have to give up their pages."""
    family = request.param
    path = tiny_checkpoint(tmp_path_factory.mktemp("generation") / family, family)
    options = {"context_length": 1024, "skip_warmup": True, "progress": False}
    engines = [
        Engine.from_pretrained(path, chunked_prefill_size=256, **options),
        Engine.from_pretrained(path, chunked_prefill_size=256, max_total_tokens=LEAST_TOKENS[family], **options),
    ]
    yield engines
    for engine in engines:
        engine.check()
        assert engine.statistics()["held_pages"] == 0
        engine.close()


def ids(seed: int, length: int) -> list[int]:
    return np.random.default_rng((seed, length)).integers(0, VOCAB, length).tolist()


@pytest.fixture
def given_up(engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences that give up their pages in the engine with little cache."""
    scheduler, numbers = engines[1]._loop._scheduler, []
    preempt = scheduler._preempt

    def counted(id: int) -> None:
        numbers.append(id)
        preempt(id)

    monkeypatch.setattr(scheduler, "_preempt", counted)
    return numbers


prompts = st.tuples(st.integers(0, 3), st.sampled_from([1, 63, 64, 65, 200, 333]))
generations = st.tuples(prompts, st.integers(1, 100), st.sampled_from(OPTIONS))
kinds = st.sampled_from(["labels", "all logits", "prompt", "draw"])
scores = st.tuples(prompts, st.lists(st.sampled_from([1, 20, 64, 300]), min_size=1, max_size=6), kinds)


def generate(engine: Engine, prompt: tuple[int, int], count: int, options: dict[str, Any]) -> GenerateResult:
    return engine.generate(ids(*prompt), count, ignore_eos=True, **options)


def score(engine: Engine, query: tuple[int, int], items: list[int], kind: str) -> list[np.ndarray]:
    """Return what is read of items: of labels, with or without all logits; of all their tokens; or a token drawn."""
    shared = np.array(ids(*query), np.int32)
    request = ScoreRequest(
        query=shared,
        item_tokens=np.concatenate([ids(9, length) for length in items]).astype(np.int32),
        item_starts=np.cumsum([0, *items]).astype(np.int32),
        context_lens=np.full(len(items), len(shared), np.int32),
        label_ids=np.array([[5, 9]], np.int32),
        apply_softmax=kind == "labels",
    )
    if kind == "prompt":
        request = replace(request, read_lens=np.array(items, np.int32), query_reads=len(shared), top_tokens=3)
    elif kind == "draw":
        keys = np.arange(2 * len(items), dtype=np.int32).reshape(-1, 2)
        request = replace(request, sampling=Sampling(keys, temperature=0.8, top_k=50, top_p=0.9))
    output = engine.submit(request).result(timeout=600)
    found = output.logits, output.log_sum_exp, output.top_ids, output.top_logits, output.next_ids, output.next_logits
    return [values for values in found if values is not None]


def assert_same(found: GenerateResult, expected: GenerateResult) -> None:
    for mine, theirs in zip(found.choices, expected.choices, strict=True):
        for name in ("token_ids", "token_logprobs", "top_ids", "top_logprobs"):
            assert_bits_equal(getattr(mine, name), getattr(theirs, name))
        assert mine.text == theirs.text


@settings(max_examples=3, deadline=None)
@given(wanted=generations, others=st.lists(generations, max_size=4), scored=st.lists(scores, max_size=4))
def test_texts_are_the_same_alone_crowded_cached_or_preempted(
    engines: list[Engine], wanted: tuple, others: list[tuple], scored: list[tuple]
) -> None:
    assert_isolated(engines, wanted, others, scored)


@pytest.mark.full
@pytest.mark.timeout(3600)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=generations,
    others=st.lists(generations, min_size=8, max_size=8),
    scored=st.lists(scores, min_size=8, max_size=8),
)
def test_among_sixteen_others_of_all_kinds(
    engines: list[Engine], given_up: list[int], wanted: tuple, others: list[tuple], scored: list[tuple]
) -> None:
    assert_isolated(engines, wanted, others, scored)
    event("gave up pages" if given_up else "nobody gave up pages")
    given_up.clear()


def assert_isolated(engines: list[Engine], wanted: tuple, others: list[tuple], scored: list[tuple]) -> None:
    """Compare a sequence alone with the same among others in both engines: where nothing is cached, then again."""
    engines[0].flush_cache()
    alone = generate(engines[0], *wanted)
    scores_alone = [score(engines[0], *each) for each in scored]
    for engine in engines:
        engine.flush_cache()
        for _ in range(2):  # the second time prompts are cached
            with ThreadPoolExecutor(32) as pool:
                beside = [pool.submit(generate, engine, *each) for each in others]
                beside_scores = [pool.submit(score, engine, *each) for each in scored]
                assert_same(pool.submit(generate, engine, *wanted).result(timeout=600), alone)
                for future in beside:
                    future.result(timeout=600)
                for future, expected in zip(beside_scores, scores_alone, strict=True):
                    for mine, theirs in zip(future.result(timeout=600), expected, strict=True):
                        assert_bits_equal(mine, theirs)


def test_scores_beside_sixteen_running_sequences(engines: list[Engine]) -> None:
    """Sixteen write until all scores are there, each of which is computed between their tokens."""
    asked = [((seed, length), items, kind) for seed, length, items, kind in SCORED]
    engines[0].flush_cache()
    alone = [score(engines[0], *each) for each in asked]
    streams = [engines[0].stream(ids(seed, 40), 900, ignore_eos=True, **OPTIONS[seed % 4]) for seed in range(16)]
    with ThreadPoolExecutor(16) as pool:
        done = threading.Event()

        def write(stream: Generator[GenerateChunk]) -> int:
            written = next(count for count, _ in enumerate(stream) if done.is_set())
            stream.close()
            return written

        writing = [pool.submit(write, stream) for stream in streams]
        try:
            while len(engines[0]._loop._scheduler._homes[0].slots) < 16:
                time.sleep(0.01)
            for _ in range(2):  # the second time queries are cached
                found = [score(engines[0], *each) for each in asked]
                assert len(engines[0]._loop._scheduler._homes[0].slots) == 16
                for values, expected in zip(found, alone, strict=True):
                    for mine, theirs in zip(values, expected, strict=True):
                        assert_bits_equal(mine, theirs)
        finally:
            done.set()
        assert all(future.result(timeout=600) > 1 for future in writing)


@pytest.mark.parametrize("engines", [*LEAST_TOKENS], indirect=True)
def test_sequences_that_gave_up_their_pages_have_the_same_bits(engines: list[Engine], given_up: list[int]) -> None:
    """Eight sequences of up to 5 pages where there are 18, or 34."""
    wanted = [((seed, 100), 200, OPTIONS[seed % 4]) for seed in range(8)]
    alone = [generate(engines[0], *each) for each in wanted]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: generate(engines[1], *each), wanted))
    assert given_up
    for mine, expected in zip(found, alone, strict=True):
        assert_same(mine, expected)


def test_a_longer_answer_begins_with_the_shorter_one(engines: list[Engine]) -> None:
    short, long = (generate(engines[0], (1, 65), count, {"seed": 3}).choices[0] for count in (40, 100))
    assert_bits_equal(long.token_ids[:40], short.token_ids)
    assert_bits_equal(long.token_logprobs[:40], short.token_logprobs)


def test_the_comparison_notices_another_seed(engines: list[Engine]) -> None:
    found: list[GeneratedChoice] = [generate(engines[0], (1, 65), 40, {"seed": s}).choices[0] for s in (3, 4)]
    with pytest.raises(AssertionError):
        assert_bits_equal(found[0].token_ids, found[1].token_ids)
