"""The front survives whatever its engine process does. Every test starts real processes."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, ModelError, RequestError
from mis_core.process.client import EngineClient, EngineFault
from mis_core.process.quarantine import RequestRefused
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, Sampling, ScoreRequest

SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_engine.py")))

pytestmark = [
    pytest.mark.anyio,
    # uvloop forks, and other tests leave JAX in this process; the server's process, which does so, never loads it.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
]


@pytest.fixture(scope="module", params=["uvloop", pytest.param("asyncio", marks=pytest.mark.full)])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Python's event loop, and the one that the server runs on."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


def client(model: str = "scripted") -> EngineClient:
    return EngineClient(EngineConfig(model=model), command=SCRIPTED)


def request(script: str | None = None, items: Sequence[int] = (10, 20)) -> ScoreRequest:
    tokens = np.array(items, np.int32)
    return ScoreRequest(
        query=np.array([1, 2], np.int32),
        item_tokens=tokens,
        item_starts=np.arange(len(tokens) + 1, dtype=np.int32),
        context_lens=np.full(len(tokens), 2, np.int32),
        label_ids=np.array([[5, 6]], np.int32),
        cache_salt=script,
    )


def generation(script: str | None = None, count: int = 5) -> GenerateRequest:
    sampling = Sampling(np.zeros((1, 2), np.int32))
    return GenerateRequest(np.array([7, 100], np.int32), count, sampling, top_tokens=2, cache_salt=script)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def engine_pid(of: EngineClient) -> int:
    assert of._process is not None
    return of._process._process.pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_engine_reports_its_counts_unasked() -> None:
    """It is asked in any case, every few seconds, whether it still answers."""
    config = EngineConfig(model="scripted", watchdog_timeout=4.0)
    async with EngineClient(config, command=SCRIPTED) as engine:
        await engine.wait_ready()
        await until(lambda: "requests" in engine.statistics)


async def test_answers_arrive_whole() -> None:
    async with client() as engine:
        assert not engine.ready
        info = await engine.wait_ready()
        assert (info.vocab_size, info.context_length) == (1000, 4096)
        assert engine.ready
        answer = await engine.score(request())
        np.testing.assert_array_equal(answer.logits, [[15, 16], [25, 26]])
        np.testing.assert_array_equal(answer.log_sum_exp, [7, 7])
        assert answer.cached_tokens == 2
        assert answer.timings_ms == {"device": 1.5}


async def lose_until_refused(engine: EngineClient) -> None:
    for _ in range(2):
        with pytest.raises(EngineUnavailable):
            await engine.score(request("lose"))
    with pytest.raises(RequestRefused):
        await engine.score(request("lose"))


async def test_a_request_that_the_device_fails_on_may_come_once_more() -> None:
    async with client() as engine:
        await engine.wait_ready()
        await lose_until_refused(engine)
        assert (await engine.score(request())).cached_tokens == 2
        assert engine.restarts == 0


async def test_a_refused_request_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client() as engine:
        await engine.wait_ready()
        await lose_until_refused(engine)
        monkeypatch.setattr("mis_core.process.quarantine._REFUSED_S", 0.0)
        with pytest.raises(EngineUnavailable):
            await engine.score(request("lose"))
        monkeypatch.setattr("mis_core.process.quarantine._REFUSED_S", 600.0)
        with pytest.raises(RequestRefused):  # one more failure was enough
            await engine.score(request("lose"))


async def test_a_frozen_engine_process_is_killed_and_started_again() -> None:
    config = EngineConfig(model="scripted", watchdog_timeout=4.0)
    async with EngineClient(config, command=SCRIPTED) as engine:
        await engine.wait_ready()
        await asyncio.sleep(5)
        assert engine.restarts == 0  # one that answers is left alone
        frozen = engine_pid(engine)
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(EngineUnavailable):
            await engine.score(request())
        await until(lambda: engine.ready)
        assert (await engine.score(request())).cached_tokens == 2
        assert not is_alive(frozen)
        assert engine.restarts == 1


async def test_many_requests_in_flight_get_their_own_answers() -> None:
    async with client() as engine:
        await engine.wait_ready()
        answers = await asyncio.gather(*(engine.score(request(items=[i])) for i in range(200)))
        assert [answer.logits[0, 0] for answer in answers] == [i + 5 for i in range(200)]
        assert engine.in_flight == 0


async def test_large_requests_pass() -> None:
    async with client() as engine:
        await engine.wait_ready()
        answer = await engine.score(request(items=range(300_000)))
        assert answer.logits.shape == (300_000, 2)


async def test_before_readiness_requests_are_refused() -> None:
    async with client("endless") as engine:
        with pytest.raises(EngineUnavailable, match="not ready"):
            await engine.score(request())


async def test_a_bad_request_harms_no_neighbour(capfd: pytest.CaptureFixture[str]) -> None:
    async with client() as engine:
        await engine.wait_ready()
        pid = engine_pid(engine)
        results = await asyncio.gather(
            *(engine.score(request(script)) for script in (None, "refuse", "fail", None)), return_exceptions=True
        )
        refused, failed = results[1], results[2]
        assert isinstance(refused, RequestError)
        assert (refused.code, refused.message, refused.param) == (
            "context_length_exceeded", "Item 3 is too long.", "items",
        )  # fmt: skip
        assert isinstance(failed, EngineFault)
        assert "poisoned" not in str(failed)
        for answer in (results[0], results[3], await engine.score(request())):
            np.testing.assert_array_equal(answer.logits, [[15, 16], [25, 26]])
        assert engine_pid(engine) == pid
    assert "FloatingPointError: a poisoned request" in capfd.readouterr().err


async def test_cancelled_work_is_skipped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with client(f"log:{log}") as engine:
        await engine.wait_ready()
        slow = asyncio.create_task(engine.score(request("slow")))
        unwanted = asyncio.create_task(engine.score(request("unwanted")))
        await until(lambda: engine.in_flight == 2)
        unwanted.cancel()
        await slow
        await engine.score(request("wanted"))
        with pytest.raises(asyncio.CancelledError):
            await unwanted
    assert log.read_text().splitlines() == ["slow", "wanted", "closed"]


async def test_tokens_arrive_as_they_come() -> None:
    async with client() as engine:
        await engine.wait_ready()
        waiting = [asyncio.create_task(collect(engine, generation(count=count))) for count in (1, 5, 200)]
        for count, told in zip((1, 5, 200), await asyncio.gather(*waiting), strict=True):
            assert [token.token_id for token in told] == list(range(101, 101 + count))
            assert [token.finish_reason for token in told] == [None] * (count - 1) + ["length"]
            assert {token.cached_tokens for token in told} == {64}
            assert all(token.top_ids.tolist() == [0, 1] for token in told)
        assert engine.in_flight == 0


async def collect(engine: EngineClient, request: GenerateRequest, told: list[NewToken] | None = None) -> list[NewToken]:
    told = [] if told is None else told

    def read(token: NewToken) -> bool:
        told.append(token)
        return True

    await engine.generate(request, read)
    return told


async def test_whoever_leaves_early_ends_the_sequence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with client(f"log:{log}") as engine:
        await engine.wait_ready()
        await engine.generate(generation("slow"), lambda token: token.token_id < 101)
        assert engine.in_flight == 0
        with pytest.raises(FloatingPointError, match="not finite"):
            await engine.generate(generation("slow"), not_finite)
        assert engine.in_flight == 0
        cancelled = asyncio.create_task(collect(engine, generation("slow")))
        await until(lambda: engine.in_flight == 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert len(await collect(engine, generation())) == 5
    *ended, closed = log.read_text().splitlines()
    assert len(ended) == 3
    assert all(line.startswith("ended after") for line in ended)  # as many as it was ahead
    assert closed == "closed"


def not_finite(token: NewToken) -> bool:
    raise FloatingPointError("Values are not finite.")


@pytest.mark.parametrize(("script", "kind"), [("fail", EngineFault), ("lose", EngineUnavailable)])
async def test_a_fault_mid_sequence_reaches_its_caller_only(script: str, kind: type[Exception]) -> None:
    async with client() as engine:
        await engine.wait_ready()
        told: list[NewToken] = []
        whole = asyncio.create_task(collect(engine, generation()))
        with pytest.raises(kind):
            await collect(engine, generation(script), told)
        assert [token.token_id for token in told] == [101, 102]
        assert len(await whole) == 5
        assert engine.restarts == 0


async def test_a_sequence_that_ends_the_engine_twice_is_refused() -> None:
    async with client() as engine:
        await engine.wait_ready()
        for _ in range(2):
            with pytest.raises(EngineUnavailable):
                await collect(engine, generation("die"))
            await until(lambda: engine.ready)
        with pytest.raises(RequestRefused):
            await collect(engine, generation("die"))
        assert len(await collect(engine, generation())) == 5


async def test_death_fails_what_is_in_flight_and_a_new_process_answers() -> None:
    async with client() as engine:
        await engine.wait_ready()
        pid = engine_pid(engine)
        results = await asyncio.gather(
            *(engine.score(request(script)) for script in ("die", None, None)), return_exceptions=True
        )
        assert all(isinstance(result, EngineUnavailable) for result in results)
        await until(lambda: not engine.ready)
        with pytest.raises(EngineUnavailable):
            await engine.score(request())
        await until(lambda: engine.ready)
        assert engine_pid(engine) != pid
        assert (await engine.score(request())).logits.shape == (2, 2)


async def test_a_fault_of_the_front_does_not_end_its_supervision(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live_once, faults = EngineClient._live_once, [RuntimeError("nobody foresaw this")]

    async def faulty(self: EngineClient) -> None:
        try:
            await live_once(self)
        except EngineUnavailable as error:
            raise faults.pop() if faults else error from None

    monkeypatch.setattr(EngineClient, "_live_once", faulty)
    async with client() as engine:
        await engine.wait_ready()
        os.kill(engine_pid(engine), signal.SIGKILL)
        await until(lambda: not faults)
        await until(lambda: engine.ready)
        assert (await engine.score(request())).logits.shape == (2, 2)
    assert "nobody foresaw this" in caplog.text


async def test_a_request_that_kills_the_engine_twice_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mis_core.process.client._FIRST_BACKOFF_S", 0.01)
    async with client() as engine:
        await engine.wait_ready()
        poison, slow = request("die"), request("slow")
        first = await asyncio.gather(engine.score(poison), engine.score(slow), return_exceptions=True)
        assert [type(result) for result in first] == [EngineUnavailable] * 2
        await until(lambda: engine.ready)
        # Both are in quarantine now: they are not computed together, whichever comes first.
        again = await asyncio.gather(engine.score(slow), engine.score(poison), return_exceptions=True)
        assert isinstance(again[0], EngineOutput)
        assert isinstance(again[1], EngineUnavailable)
        await until(lambda: engine.ready)
        pid = engine_pid(engine)
        with pytest.raises(RequestRefused):
            await engine.score(poison)
        assert (await engine.score(slow)).logits.shape == (2, 2)
        assert engine_pid(engine) == pid
        assert engine.restarts == 2


async def test_kills_from_outside_convict_no_request_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_core.process.client._FIRST_BACKOFF_S", 0.01)
    async with client() as engine:
        await engine.wait_ready()
        mine = request("hang", items=[1])
        for others in (100, 200):
            crowd = [request("hang", items=[others + number]) for number in range(18)]
            asked = [asyncio.create_task(engine.score(each)) for each in (mine, *crowd)]
            await until(lambda: engine.in_flight >= 19)
            os.kill(engine_pid(engine), signal.SIGKILL)
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, EngineUnavailable) for each in results)
            await until(lambda: engine.ready)
        again = asyncio.create_task(engine.score(mine))
        await until(lambda: engine.in_flight == 1 or again.done())
        assert not again.done()  # not refused
        again.cancel()


async def test_operations_on_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with client(f"log:{log}") as engine:
        with pytest.raises(EngineUnavailable):
            await engine.operate("statistics")
        info = await engine.wait_ready()
        assert info.summary == {"devices": "1 x pretended"}
        await engine.score(request())
        assert await engine.operate("statistics") == {"requests": 1}
        assert await engine.operate("flush_cache") == {"freed_pages": 7}
        assert engine.statistics == {"requests": 1}
        with pytest.raises(RequestError, match="under way"):
            await engine.operate("start_profile", "taken")
        await engine.operate("start_profile", "folder")
        writing = asyncio.create_task(engine.operate("stop_profile"))
        await asyncio.sleep(0)
        assert (await engine.score(request())).logits.shape == (2, 2)
        assert not writing.done()
        await writing
    assert log.read_text().splitlines()[1:] == ["profile in folder", "None", "profile written", "closed"]


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("refused", ModelError, "model.norm.weight is missing."),
        ("broken", EngineUnavailable, "The engine could not start: MemoryError: no room for weights"),
        ("dead", EngineUnavailable, "The engine process ended with code 3."),
    ],
)
async def test_a_failed_start_is_told_in_one_line(model: str, kind: type[Exception], message: str) -> None:
    async with client(model) as engine:
        with pytest.raises(kind) as caught:
            await engine.wait_ready()
        assert str(caught.value) == message
        assert not engine.ready


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
async def test_the_engine_process_logs_what_the_front_does(
    level: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(level, "mis_core"):
        async with client() as engine:
            await engine.wait_ready()
            with pytest.raises(EngineFault):
                await engine.score(request("log"))
    error = capfd.readouterr().err
    assert ("told" in error) == (level == "INFO")
    assert "a poisoned request" in error


async def test_a_missing_command_is_told_in_one_line() -> None:
    async with EngineClient(EngineConfig(model="m"), command=("/no/such/program",)) as engine:
        with pytest.raises(EngineUnavailable, match="could not be started: No such file"):
            await engine.wait_ready()


async def test_a_process_that_breaks_the_protocol_is_told(tmp_path: Path) -> None:
    script = tmp_path / "nonsense.py"
    script.write_text("import os, sys, time\nos.write(int(sys.argv[1]), b'HTTP/1.1 200 OK')\ntime.sleep(60)\n")
    async with EngineClient(EngineConfig(model="m"), command=(sys.executable, str(script))) as engine:
        with pytest.raises(EngineUnavailable, match="broke the protocol: A frame announces"):
            await engine.wait_ready()


async def test_close_ends_the_process_and_fails_what_is_in_flight() -> None:
    engine = client()
    async with engine:
        await engine.wait_ready()
        pid = engine_pid(engine)
        slow = asyncio.create_task(engine.score(request("slow")))
        await until(lambda: engine.in_flight == 1)
    with pytest.raises(EngineUnavailable):
        await slow
    assert not is_alive(pid)
    await engine.close()


async def test_close_while_the_process_is_started_leaves_nothing_open() -> None:
    for turns in range(12):
        async with client("endless"):
            for _ in range(turns):
                await asyncio.sleep(0)
    gc.collect()  # an open socket would be a warning, and fail


async def test_close_while_loading_does_not_wait_for_the_model() -> None:
    engine = client("endless")
    async with asyncio.timeout(120), engine:
        await asyncio.sleep(0.1)
    with pytest.raises(EngineUnavailable, match="was closed"):
        await engine.wait_ready()
