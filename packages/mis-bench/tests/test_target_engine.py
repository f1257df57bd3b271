"""Our engine as a target."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mis_bench.targets.target import CallFailed, TargetUnavailable
from mis_bench.workload import Workload, build_workload
from mis_core import Engine
from mis_testing.options import SMALL_ENGINE
from targets import Local

VOCABULARY = 2048


@pytest.fixture(scope="module")
def model(checkpoint_factory) -> Path:
    return checkpoint_factory(vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def target(model: Path) -> Iterator[Local]:
    target = Local("engine", model, **{name: str(value) for name, value in SMALL_ENGINE.items()})
    yield target
    target.close()


@pytest.fixture
def engine(target: Local) -> Engine:
    """The engine behind the target."""
    return target.target.blocking.engine


@pytest.fixture
def workload() -> Workload:
    return build_workload("probe-40-6-5").within(VOCABULARY)


def test_scores_come_with_stages_and_cached_tokens(target: Local, workload: Workload) -> None:
    target.forget()
    cold, warm = target.score(workload), target.score(workload)
    assert cold.scores.shape == (6, 2)
    assert cold.scores.dtype == np.float64
    assert (cold.cached_tokens or 0) < (warm.cached_tokens or 0)
    assert {"tokenize", "queue", "device"} <= set(cold.stages_ms)
    np.testing.assert_allclose(cold.scores, warm.scores, rtol=1e-4)


def test_forgetting_empties_the_cache(target: Local, workload: Workload) -> None:
    target.score(workload)
    target.forget()
    assert target.score(workload).cached_tokens == 0


def test_only_a_new_shape_compiles_and_is_counted(target: Local, workload: Workload) -> None:
    import jax

    for _ in range(2):
        target.score(workload)
    before = target.counts()
    target.score(workload)
    after = target.counts()
    assert before["compilations"] == after["compilations"]
    assert after["steps"] > before["steps"]
    assert after["memory_bytes"] > 1e6
    jax.jit(lambda x: x * 3 + len("heard"))(np.float32(1.0))
    assert target.counts()["compilations"] > after["compilations"]


def test_a_request_may_choose_its_layout(target: Local, workload: Workload) -> None:
    scores = target.score(workload).scores
    steps = target.counts()["steps"]
    serial = target.score(workload, {"scoring_algorithm": "serial"})
    assert target.counts()["steps"] > steps + 1
    np.testing.assert_allclose(serial.scores, scores, rtol=1e-4)


def test_it_says_what_it_is(target: Local) -> None:
    about = target.about
    assert (about.name, about.backend, about.dtype) == ("engine", "mis-engine", "float32")
    assert about.options["chunked_prefill_size"] == 256
    assert about.options["step_tokens"] == 256
    assert len(about.model_sha256 or "") == 64
    assert {"mis-core", "jax"} <= set(about.versions)


def test_texts_are_scored(target: Local) -> None:
    reply = target.score(build_workload("text-20-4-3").within(VOCABULARY))
    assert reply.scores.shape == (4, 2)
    assert len(np.unique(reply.scores)) == 8


def test_documents_are_reranked(target: Local, engine: Engine) -> None:
    workload = build_workload("rerank-6-5-4")
    reply = target.score(workload)
    found = {each.index: each.relevance_score for each in engine.rerank(**workload.request).results}
    assert reply.scores.ravel().tolist() == pytest.approx([found[index] for index in range(5)])
    assert {"tokenize", "queue", "device"} <= set(reply.stages_ms)


def test_statements_are_decided(target: Local, engine: Engine) -> None:
    workload = build_workload("decisions-6-5-4")
    found = [getattr(each, "probability", None) for each in engine.decide(**workload.request).answers]
    assert target.score(workload).scores.ravel().tolist() == pytest.approx(found)


def test_questions_of_system_one_are_answered(target: Local) -> None:
    scores = target.score(build_workload("systemone-6-5-4")).scores
    assert scores.shape == (5, 1)
    assert len(np.unique(scores)) == 5
    assert 0 < scores.min() < scores.max() < 1


def test_loglikelihoods_are_sums_of_scores_of_each_next_token(target: Local, engine: Engine) -> None:
    workload = build_workload("loglikelihoods-9-4-3").within(VOCABULARY)
    query = np.asarray(workload.query).tolist()
    wanted = []
    for item in (np.asarray(item).tolist() for item in workload.items):
        before, labels = [item[:place] for place in range(len(item))], [[token] for token in item]
        wanted.append(np.log(engine.score(query, before, labels).scores).mean())
    np.testing.assert_allclose(target.score(workload).scores.ravel(), wanted, rtol=1e-4)


def test_a_request_that_cannot_be_served_is_rejected(target: Local) -> None:
    with pytest.raises(CallFailed, match="vocabulary") as caught:
        target.score(build_workload("probe-40-6-5"))
    assert caught.value.reason == "rejected"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring_algorithm": "fast"}, "scoring_algorithm must be one of"),
        ({"scoring_algoritm": "packed"}, "Did you mean 'scoring_algorithm'"),
        ({"chunked_prefill_size": "many"}, "'chunked_prefill_size' of engine: Input should be a valid integer"),
        ({"disable_radix_cache": "perhaps"}, "'disable_radix_cache' of engine: Input should be a valid boolean"),
        ({"context_length": "100000"}, "context_length 100000 exceeds"),
    ],
)
def test_wrong_options_are_named(model: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message):
        Local("engine", model, **options)


@pytest.mark.parametrize(
    ("spec", "message"),
    [("engin", "did you mean engine"), ("nothing-like-it", "known are engine"), ("engine", "--model")],
)
def test_unknown_targets_and_missing_models_are_named(spec: str, message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message):
        Local(spec, None)
