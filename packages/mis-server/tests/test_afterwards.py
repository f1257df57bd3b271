"""What is left for later is done, in order, soon or when it is much."""

import asyncio
from typing import Any

import pytest

from mis_server.telemetry.afterwards import Afterwards

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_work_is_done_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_server.telemetry.afterwards._DELAY_S", 0.01)
    done: list[int] = []
    afterwards = Afterwards()
    for turn in range(2):
        for number in range(3):
            afterwards.do(lambda number=number: done.append(number))
        assert done == [0, 1, 2] * turn
        async with asyncio.timeout(10):
            while len(done) < 3 * (turn + 1):
                await asyncio.sleep(0.01)
    assert done == [0, 1, 2] * 2


async def test_much_work_is_done_at_once_but_not_by_who_gives_it() -> None:
    done: list[int] = []
    afterwards = Afterwards()
    for number in range(100):
        afterwards.do(lambda number=number: done.append(number))
    assert done == []
    await asyncio.sleep(0)
    assert done == list(range(100))
    afterwards.finish()
    assert done == list(range(100))


async def test_one_timer_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def counted(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", counted)
    afterwards = Afterwards()
    for _ in range(5):
        for _ in range(64):
            afterwards.do(lambda: None)
        await asyncio.sleep(0)
        afterwards.do(lambda: None)
    assert len(timers) > 1
    assert sum(not timer.cancelled() for timer in timers) == 1
    afterwards.finish()


async def test_work_that_fails_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("a reason")

    afterwards = Afterwards()
    afterwards.do(fail)
    afterwards.do(lambda: done.append("after it"))
    afterwards.finish()
    assert done == ["after it"]
    assert "a reason" in caplog.text
