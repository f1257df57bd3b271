"""Which steps are over before the next is planned."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mis_core.engine import pace as pace_module
from mis_core.engine.loop import EngineLoop
from mis_core.engine.pace import Pace
from mis_core.errors import EngineUnavailable
from mis_core.requests import Layout, ScoreRequest
from mis_core.scheduler.plan import StepPlan, StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.scheduler import Scheduler

SHAPE = StepShape(tokens=512, scored=64, contexts=32, pages_per_context=24, longest_item=256)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace_module, "time", clock)
    return clock


def take(pace: Pace, clock: Clock, seconds: float, kind: int = 512) -> float:
    pace.begin(kind)
    clock.now += seconds
    return pace.end()


def test_a_step_is_not_long_before_one_of_its_kind_was_seen(clock: Clock) -> None:
    pace = Pace()
    assert not pace.runs_long
    take(pace, clock, 1.0, kind=256)
    pace.begin(512)
    assert not pace.runs_long


@pytest.mark.parametrize(("seconds", "is_long"), [((2.0, 0.051, 1.2), True), ((2.0, 0.049, 1.2), False)])
def test_a_step_is_as_long_as_the_shortest_of_its_kind(clock: Clock, seconds: tuple[float, ...], is_long: bool) -> None:
    pace = Pace()
    for each in seconds:
        take(pace, clock, each)
    pace.begin(512)
    assert pace.runs_long == is_long


def test_grace_is_a_small_part_of_the_step(clock: Clock) -> None:
    assert take(Pace(), clock, 0.8) == pytest.approx(0.025)


def test_a_queued_step_begins_when_the_one_before_it_ends(clock: Clock) -> None:
    pace = Pace()
    pace.begin(256)
    pace.begin(512)
    clock.now += 3.0
    pace.end()
    clock.now += 0.04
    pace.end()
    pace.begin(512)
    assert not pace.runs_long  # it took 40 ms, not 3.04 s


def test_of_two_steps_neither_is_awaited(clock: Clock) -> None:
    pace = Pace()
    take(pace, clock, 1.0)
    pace.begin(512)
    assert pace.runs_long
    pace.begin(512)
    assert not pace.runs_long


def test_lost_steps_are_forgotten(clock: Clock) -> None:
    pace = Pace()
    take(pace, clock, 1.0)
    pace.begin(512)
    pace.forget()
    assert not pace.runs_long


class Device:
    """A runner whose steps take a while, one after the other."""

    def __init__(self, step_s: float = 0.08) -> None:
        self.steps: list[int] = []
        self.step_s = step_s
        self.most_queued = 0
        self._queued = 0
        self._free = 0.0

    def size_of(self, plan: StepPlan) -> int:
        return 512

    def run(self, plan: StepPlan) -> Any:
        self.steps.append(len(plan.readings))
        self._free = max(self._free, time.perf_counter()) + self.step_s
        self._queued += 1
        self.most_queued = max(self.most_queued, self._queued)
        return Step(plan, self._free, self.finish)

    def finish(self) -> None:
        self._queued -= 1


class Step:
    def __init__(self, plan: StepPlan, end: float, finish: Callable[[], None]) -> None:
        self.plan, self._end, self._finish = plan, end, finish

    def wait(self) -> list[Values]:
        time.sleep(max(0.0, self._end - time.perf_counter()))
        self._finish()
        zeros = (np.zeros(reading.label_ids.shape, np.float32) for reading in self.plan.readings)
        return [Values(logits, np.zeros(len(logits), np.float32)) for logits in zeros]


def request_of(query: int, item: int, items: int = 1) -> ScoreRequest:
    return ScoreRequest(
        query=np.full(5, query, np.int32),
        item_tokens=item + np.arange(3 * items, dtype=np.int32),
        item_starts=np.arange(0, 3 * items + 1, 3, dtype=np.int32),
        context_lens=np.full(items, 5, np.int32),
        label_ids=np.tile(np.array([[1, 2]], np.int32), (items, 1)),
    )


def steps_of(device: Device, callers: int, turns: int, pause_s: float) -> list[int]:
    """Let callers ask, each again when it is answered and a while has passed; return how many each step held."""
    loop = EngineLoop(device, Scheduler(SHAPE, 200, Layout()))  # type: ignore[arg-type]

    def ask(caller: int) -> None:
        for turn in range(turns):
            loop.submit(request_of(caller, turn)).result(timeout=60)
            time.sleep(pause_s)

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(ask, range(callers)))
    loop.close()
    assert sum(device.steps) == callers * turns
    return device.steps


def scored_by(device: Device, count: int) -> EngineLoop:
    """Score requests one after the other; return the loop."""
    loop = EngineLoop(device, Scheduler(SHAPE, 200, Layout()))  # type: ignore[arg-type]
    for number in range(count):
        loop.submit(request_of(number, 1)).result(timeout=60)
    return loop


def test_callers_that_wait_for_answers_share_one_step() -> None:
    # Ten milliseconds are less than the grace after a step of 0.8 s, and more than planning takes.
    steps = steps_of(Device(step_s=0.8), callers=12, turns=5, pause_s=0.01)
    assert np.median(steps[3:]) > 6  # in two groups there would be six


def test_nobody_waits_long_for_callers_that_do_not_come_back() -> None:
    device = Device(step_s=0.2)
    loop = scored_by(device, 3)
    answered = loop.submit(request_of(3, 1))
    while len(device.steps) < 4:
        time.sleep(0.001)
    late = loop.submit(request_of(4, 1))  # while the step runs that answers the one before
    answered.result(timeout=60)
    began = time.perf_counter()
    late.result(timeout=60)
    assert time.perf_counter() - began < 10  # 0.2 s, and a few milliseconds of grace
    loop.close()


def test_closing_waits_for_nobody() -> None:
    device = Device(step_s=0.2)
    loop = scored_by(device, 1)
    future = loop.submit(request_of(7, 1))
    while len(device.steps) < 2:
        time.sleep(0.001)
    loop.close()
    assert future.done()


def test_requests_are_looked_at_while_nobody_can_cancel_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = scored_by(Device(), 2)
    looks_at, others = Scheduler.makes_a_step.fget, ThreadPoolExecutor(1)
    could_cancel: list[bool] = []

    def acquired() -> bool:
        if found := loop._changed.acquire(blocking=False):
            loop._changed.release()
        return found

    def watched(self: Scheduler) -> bool:
        could_cancel.append(others.submit(acquired).result())
        assert looks_at is not None
        return looks_at(self)

    monkeypatch.setattr(Scheduler, "makes_a_step", property(watched))
    loop.submit(request_of(5, 1)).result(timeout=60)
    loop.close()
    others.shutdown()
    assert could_cancel
    assert not any(could_cancel)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_the_thread_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Scheduler) -> None:
        raise SystemExit  # which ends a thread without a word

    monkeypatch.setattr(Scheduler, "next_step", broken)
    loop = EngineLoop(Device(), Scheduler(SHAPE, 200, Layout()))  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable):
        loop.submit(request_of(0, 1)).result(timeout=60)
    with pytest.raises(EngineUnavailable):
        loop.submit(request_of(0, 1))
    loop.close()  # waits for the thread, which reports its end to whichever test runs then


def test_a_full_step_is_planned_while_another_runs() -> None:
    device = Device(step_s=0.2)
    loop = EngineLoop(device, Scheduler(SHAPE, 400, Layout()))  # type: ignore[arg-type]
    many = [request_of(number, 1, items=120) for number in range(8)]  # 360 tokens each, of the 512 of a step
    for future in [loop.submit(each) for each in many]:
        future.result(timeout=60)
    loop.close()
    assert device.most_queued == 2
