"""Our server as a target."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from mis_bench.targets.base import BlockingTarget, CallFailed, TargetUnavailable
from mis_bench.targets.registry import make_target
from mis_bench.workload import Workload, build_workload
from mis_testing.server import RunningServer, running_server

VOCABULARY = 2048


@pytest.fixture
def connect() -> Iterator[Callable[..., BlockingTarget]]:
    with ExitStack() as stack:
        yield lambda spec, **options: stack.enter_context(closing(make_target(spec, **options)))


@pytest.fixture
def workload() -> Workload:
    return build_workload("ragged-6-5-3").within(VOCABULARY)


@pytest.fixture(scope="module")
def running(checkpoint_factory) -> Iterator[RunningServer]:
    flags = ["--dtype", "float32", "--chunked-prefill-size", "256", "--skip-warmup"]
    keys = ["--api-key", "secret", "--admin-api-key", "topsecret", "--enable-request-layout"]
    with running_server(checkpoint_factory(vocab_size=VOCABULARY), *flags, *keys) as server:
        yield server


def test_our_server_scores_forgets_and_counts(
    connect, running: RunningServer, workload: Workload, checkpoint_factory
) -> None:
    target = connect(f"mis={running.base_url}", options={"api_key": "secret"})
    cold, warm = target.score(workload), target.score(workload)
    target.forget()
    again = target.score(workload)
    assert cold.scores.shape == (5, 2)
    assert cold.cached_tokens == again.cached_tokens == 0
    assert (warm.cached_tokens or 0) > 0
    np.testing.assert_allclose(cold.scores, again.scores, rtol=1e-3)
    counts = target.counts()
    target.score(workload)
    assert target.counts()["requests"] == counts["requests"] + 1
    assert target.counts()["compilations"] == counts["compilations"] == counts["mis_engine_compilations_total"]
    assert counts["memory_bytes"] > 1e6
    assert counts["mis_stage_seconds_sum.device"] > 0
    about = target.about
    assert (about.backend, about.dtype, about.options["step_tokens"]) == ("mis-server", "float32", 256)
    assert about.model == str(checkpoint_factory(vocab_size=VOCABULARY))
    assert len(about.model_sha256 or "") == 64
    assert not any("secret" in str(value) for value in about.options.values())


def test_our_server_is_flushed_with_an_admin_key_and_takes_layouts(
    connect, running: RunningServer, workload: Workload
) -> None:
    options = {"api_key": "secret", "admin_key": "topsecret", "scoring_algorithm": "serial"}
    target = connect(f"mis={running.base_url}/v1", options=options)
    target.score(workload)
    assert target.counts()["cached_pages"] > 0
    target.forget()
    assert target.counts()["cached_pages"] == 0


def test_many_callers_may_ask_our_server_at_once(connect, running: RunningServer, workload: Workload) -> None:
    target = connect(f"mis={running.base_url}", options={"api_key": "secret"})
    with ThreadPoolExecutor(12) as pool:
        shapes = list(pool.map(lambda number: target.score(workload.another(number)).scores.shape, range(24)))
    assert shapes == [(5, 2)] * 24


def test_our_server_says_why_it_rejects(connect, running: RunningServer) -> None:
    target = connect(f"mis={running.base_url}", options={"api_key": "secret"})
    with pytest.raises(CallFailed, match=r"422: .*vocabulary") as caught:
        target.score(build_workload("probe-6-5-3"))
    assert caught.value.reason == "rejected"


def test_a_wrong_key_is_found_by_the_check(connect, running: RunningServer) -> None:
    with pytest.raises(TargetUnavailable, match=r"failed its check \(http_error\).*401.*API key"):
        connect(f"mis={running.base_url}", options={"api_key": "guess"})
