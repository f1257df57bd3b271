"""When the step behind the running one is planned."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mis_core.engine import pace as pace_module
from mis_core.engine.loop import EngineLoop
from mis_core.engine.pace import Pace
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


def take(pace: Pace, clock: Clock, seconds: float, kind: int = 512, host_s: float = 0.001) -> None:
    pace.begin(kind, host_s)
    clock.now += seconds
    pace.end()


def test_nothing_is_awaited_before_a_step_of_the_kind_was_seen(clock: Clock) -> None:
    pace = Pace()
    assert pace.time_to_plan() is None
    take(pace, clock, 1.0, kind=256)
    pace.begin(512, 0.0)
    assert pace.time_to_plan() is None


def test_planning_waits_until_a_quarter_of_the_shortest_is_left(clock: Clock) -> None:
    pace = Pace()
    for seconds in (2.0, 0.8, 1.2):
        take(pace, clock, seconds)
    pace.begin(512, 0.0)
    assert pace.time_to_plan() == pytest.approx(clock.now + 0.6)


def test_it_leaves_twice_the_time_that_planning_took(clock: Clock) -> None:
    pace = Pace()
    take(pace, clock, 0.8, host_s=0.15)
    pace.begin(512, 0.15)
    assert pace.time_to_plan() == pytest.approx(clock.now + 0.5)


def test_short_steps_are_not_awaited(clock: Clock) -> None:
    pace = Pace()
    take(pace, clock, 0.049)
    pace.begin(512, 0.0)
    assert pace.time_to_plan() is None


def test_a_queued_step_begins_when_the_one_before_it_ends(clock: Clock) -> None:
    pace = Pace()
    pace.begin(256, 0.0)
    pace.begin(512, 0.0)
    assert pace.time_to_plan() is None  # nothing more is planned behind two
    clock.now += 3.0
    pace.end()
    clock.now += 1.0
    pace.end()
    pace.begin(512, 0.0)
    assert pace.time_to_plan() == pytest.approx(clock.now + 0.75)


def test_lost_steps_are_forgotten(clock: Clock) -> None:
    pace = Pace()
    take(pace, clock, 1.0)
    pace.begin(512, 0.0)
    pace.forget()
    assert pace.time_to_plan() is None


class Device:
    """A runner whose steps take a while, one after the other."""

    def __init__(self, step_s: float = 0.08) -> None:
        self.steps: list[int] = []
        self.step_s = step_s
        self._free = 0.0

    def size_of(self, plan: StepPlan) -> int:
        return 512

    def run(self, plan: StepPlan) -> Any:
        self.steps.append(len(plan.readings))
        self._free = max(self._free, time.perf_counter()) + self.step_s
        return Step(plan, self._free)


class Step:
    def __init__(self, plan: StepPlan, end: float) -> None:
        self.plan, self._end = plan, end

    def is_ready(self) -> bool:
        return time.perf_counter() >= self._end

    def wait(self) -> list[Values]:
        time.sleep(max(0.0, self._end - time.perf_counter()))
        zeros = (np.zeros(reading.label_ids.shape, np.float32) for reading in self.plan.readings)
        return [Values(logits, np.zeros(len(logits), np.float32)) for logits in zeros]


def request_of(query: int, item: int) -> ScoreRequest:
    return ScoreRequest(
        query=np.full(5, query, np.int32),
        item_tokens=np.full(3, item, np.int32),
        item_starts=np.array([0, 3], np.int32),
        context_lens=np.array([5], np.int32),
        label_ids=np.array([[1, 2]], np.int32),
    )


def test_callers_that_wait_for_answers_share_two_steps_not_three() -> None:
    callers, turns = 12, 6
    device = Device(step_s=0.2)
    loop = EngineLoop(device, Scheduler(SHAPE, 200, Layout()))  # type: ignore[arg-type]

    def ask(caller: int) -> None:
        for turn in range(turns):
            loop.submit(request_of(caller, turn)).result(timeout=60)
            time.sleep(0.01)  # a step that is planned as soon as another ends leaves this caller out

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(ask, range(callers)))
    loop.close()
    assert sum(device.steps) == callers * turns
    # The first steps are not awaited, since it is not known how long they take; those of the last turn are fewer.
    assert np.mean(device.steps[5:-3]) > callers * 5 / 12


def scored_by(device: Device, count: int) -> EngineLoop:
    """Score requests one after the other; return the loop."""
    loop = EngineLoop(device, Scheduler(SHAPE, 200, Layout()))  # type: ignore[arg-type]
    for number in range(count):
        loop.submit(request_of(number, 1)).result(timeout=60)
    return loop


def test_a_step_that_is_over_early_is_answered_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "time_to_plan", lambda self: time.perf_counter() + 600)
    scored_by(Device(), 3).close()


def test_closing_does_not_wait_for_the_time_to_plan() -> None:
    device = Device(step_s=0.2)
    loop = scored_by(device, 1)
    future = loop.submit(request_of(7, 1))
    while len(device.steps) < 2:
        time.sleep(0.001)
    loop.close()
    assert future.done()
