"""Our engine as a target."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mis_bench.targets.base import BlockingTarget, CallFailed, TargetUnavailable
from mis_bench.targets.engine import EngineTarget
from mis_bench.workload import Workload, build_workload
from targets import loaded

VOCABULARY = 2048


@pytest.fixture(scope="module")
def model(checkpoint_factory) -> Path:
    return checkpoint_factory(vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def target(model: Path) -> Iterator[BlockingTarget]:
    target = loaded("engine", model, dtype="float32", chunked_prefill_size="256", skip_warmup="true")
    yield target
    target.close()
    target.close()


@pytest.fixture
def workload() -> Workload:
    return build_workload("probe-40-6-5").within(VOCABULARY)


def test_scores_come_with_stages_and_cached_tokens(target: BlockingTarget, workload: Workload) -> None:
    target.forget()
    cold, warm = target.score(workload), target.score(workload)
    assert cold.scores.shape == (6, 2)
    assert cold.scores.dtype == np.float64
    assert (cold.cached_tokens or 0) < (warm.cached_tokens or 0)
    assert {"tokenize", "queue", "device"} <= set(cold.stages_ms)
    np.testing.assert_allclose(cold.scores, warm.scores, rtol=1e-4)


def test_forgetting_empties_the_cache(target: BlockingTarget, workload: Workload) -> None:
    target.score(workload)
    target.forget()
    assert target.score(workload).cached_tokens == 0


def test_nothing_compiles_for_a_known_shape_and_the_counter_can_hear_it(
    target: BlockingTarget, workload: Workload
) -> None:
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


def test_one_engine_may_be_asked_with_other_fields(target: BlockingTarget, workload: Workload) -> None:
    assert isinstance(target, EngineTarget)
    serial = target.asking(scoring_algorithm="serial")
    steps = target.counts()["steps"]
    np.testing.assert_allclose(serial.score(workload).scores, target.score(workload).scores, rtol=1e-4)
    assert serial.about.options["scoring_algorithm"] == "serial"
    assert target.counts()["steps"] > steps + 1
    assert serial.counts() == target.counts()


def test_it_says_what_it_is(target: BlockingTarget) -> None:
    about = target.about
    assert (about.name, about.backend, about.dtype) == ("engine", "mis-engine", "float32")
    assert about.options["chunked_prefill_size"] == 256
    assert about.options["step_tokens"] == 256
    assert len(about.model_sha256 or "") == 64
    assert {"mis-core", "jax"} <= set(about.versions)


def test_texts_are_scored(target: BlockingTarget) -> None:
    reply = target.score(build_workload("text-20-4-3").within(VOCABULARY))
    assert reply.scores.shape == (4, 2)
    assert len(np.unique(reply.scores)) == 8


def test_a_request_that_cannot_be_served_is_rejected(target: BlockingTarget) -> None:
    with pytest.raises(CallFailed, match="vocabulary") as caught:
        target.score(build_workload("probe-40-6-5"))
    assert caught.value.reason == "rejected"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring_algorithm": "fast"}, "scoring_algorithm must be one of"),
        ({"scoring_algoritm": "packed"}, "Did you mean 'scoring_algorithm'"),
        ({"chunked_prefill_size": "many"}, "chunked_prefill_size must be an integer, not 'many'"),
        ({"disable_radix_cache": "perhaps"}, "must be true or false"),
        ({"context_length": "100000"}, "context_length 100000 exceeds"),
    ],
)
def test_wrong_options_are_named(model: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message):
        loaded("engine", model, **options)


@pytest.mark.parametrize(
    ("spec", "message"),
    [("engin", "did you mean engine"), ("nothing-like-it", "known are engine"), ("engine", "--model")],
)
def test_unknown_targets_and_missing_models_are_named(spec: str, message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message):
        loaded(spec, None)
