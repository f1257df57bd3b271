"""Our server as a target."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from mis_bench.targets.target import CallFailed, TargetUnavailable
from mis_bench.workload import Workload, build_workload
from mis_testing.server import RunningServer, running_server
from targets import Connect, ask

VOCABULARY = 2048

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:
        yield Connect(stack)


@pytest.fixture
def workload() -> Workload:
    return build_workload("ragged-6-5-3").within(VOCABULARY)


@pytest.fixture(scope="module")
def running(checkpoint_factory: Callable[..., Path]) -> Iterator[RunningServer]:
    flags = ["--dtype", "float32", "--chunked-prefill-size", "256", "--max-total-tokens", "8192", "--skip-warmup"]
    more = ["--api-key", "secret"]
    with running_server(checkpoint_factory(vocab_size=VOCABULARY), *flags, *more) as server:
        yield server


async def test_our_server_scores_forgets_and_counts(
    connect: Connect, running: RunningServer, workload: Workload, checkpoint_factory: Callable[..., Path]
) -> None:
    target = await connect(f"mis={running.base_url}", api_key="secret")
    cold, warm = await ask(target, workload), await ask(target, workload)
    await target.forget()
    again = await ask(target, workload)
    assert cold.scores.shape == (5, 2)
    assert cold.cached_tokens == again.cached_tokens == 0
    assert (warm.cached_tokens or 0) > 0
    np.testing.assert_allclose(cold.scores, again.scores, rtol=1e-3)
    counts = await target.counts()
    await ask(target, workload)
    after = await target.counts()
    assert after["requests"] == counts["requests"] + 1
    assert after["compilations"] == counts["compilations"]
    assert counts["memory_bytes"] > 1e6
    about = target.about
    assert (about.backend, about.dtype, about.options["step_tokens"]) == ("mis-server", "float32", 256)
    assert about.model == str(checkpoint_factory(vocab_size=VOCABULARY))
    assert len(about.model_sha256 or "") == 64
    assert not any("secret" in str(value) for value in about.options.values())


async def test_many_callers_may_ask_our_server_at_once(
    connect: Connect, running: RunningServer, workload: Workload
) -> None:
    target = await connect(f"mis={running.base_url}", api_key="secret")
    requests = [target.prepare(workload.another(number)) for number in range(24)]
    answers = await asyncio.gather(*map(target.call, requests))
    together = np.stack([answer.reply.scores for answer in answers])
    alone = [(await target.call(request)).reply.scores for request in requests]
    np.testing.assert_allclose(together, alone, rtol=1e-3)


async def test_our_server_says_why_it_rejects(connect: Connect, running: RunningServer) -> None:
    target = await connect(f"mis={running.base_url}", api_key="secret")
    with pytest.raises(CallFailed, match=r"422: .*vocabulary") as caught:
        await ask(target, build_workload("probe-6-5-3"))
    assert caught.value.reason == "rejected"


async def test_a_wrong_key_is_found_by_the_check(connect: Connect, running: RunningServer) -> None:
    with pytest.raises(TargetUnavailable, match=r"failed its check \(http_error\).*401.*API key"):
        await connect(f"mis={running.base_url}", api_key="guess")
