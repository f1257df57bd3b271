"""The line of those that wait: what a step costs however long it is, and that plans are those of a plain list."""

import dataclasses
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_generation import SHAPE, generation_of
from test_scheduler import Driver, request_of, tokens
from token_machine import TokenMachine, values_of

from mis_core.requests import GenerateRequest, Layout, ScoreRequest
from mis_core.scheduler import decoding, homes, scheduler, waiting
from mis_core.scheduler.answer import without_duplicates
from mis_core.scheduler.generation_run import Generation
from mis_core.scheduler.homes import Opening
from mis_core.scheduler.plan import StepPlan, StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.run import Waiting
from mis_core.scheduler.scheduler import Scheduler
from mis_core.scheduler.score_run import WaitingScore

pytestmark = pytest.mark.quick

FEW = 10
SLOTS = 4  # fewer than there are, so that more is seen in less time


class Drawer(TokenMachine):
    """Draws what the machine draws, and remembers nothing: these tests compare plans."""

    def run(self, plan: StepPlan) -> list[Values]:
        seen = np.zeros(max(len(shard.scored_rows) for shard in plan.shards))
        return [values_of(reading, seen) for reading in plan.readings]


def driver_of(scheduler: Scheduler, shape: StepShape) -> Driver:
    driver = Driver(shape, 1)
    driver.scheduler, driver.machine = scheduler, Drawer(1, shape.shards)
    scheduler.check = lambda: None  # its time grows with what is cached
    return driver


class InAList(Scheduler):
    """The same scheduler with all that wait in one list, which every step walks until nobody may begin any more."""

    def __init__(self, *arguments: Any, tried: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: Any = deque()
        self._most_tried = tried
        self._came = self._came_back = 0

    def submit(self, id: int, request: ScoreRequest) -> None:
        self._append(WaitingScore(id, *without_duplicates(request), 0.0))

    def generate(self, id: int, request: GenerateRequest) -> None:
        self._append(Generation(id, request))

    def _append(self, entry: Waiting) -> None:
        self._came += 1
        entry.order = self._came
        self._waiting.append(entry)

    def cancel(self, id: int) -> bool:
        for each in self._waiting:
            if each.id == id:
                self._waiting.remove(each)
                return True
        self._waiting, line = waiting.WaitingLine(), self._waiting  # an empty one, for the rest of the method
        try:
            return super().cancel(id)
        finally:
            self._waiting = line

    def _preempt(self, id: int) -> None:
        entry = self._runs[id].waiting
        self._end(id, count=False)
        self._came_back -= 1
        entry.order = self._came_back
        self._waiting.appendleft(entry)

    def _admit(self) -> None:
        is_alone = not self._turns and not self._has_sequences and len(self._waiting) == 1
        opening = Opening(self._homes, self._shape, self._layout, self._waiting_tokens(self._turns), is_alone)
        passed: list[Waiting] = []
        tried = 0
        for each in list(self._waiting):
            if len(self._turns) >= self._max_running:
                return
            if isinstance(each, Generation) and tried >= self._most_tried and self._has_slot:
                passed.append(each)
                continue
            run = self._try(each, opening)
            if run is None:
                if not isinstance(each, Generation) or not self._passes(each):
                    return
                passed.append(each)
                tried += 1
                continue
            for generation in passed:
                generation.passes += 1
            self._begin(run)
            self._waiting.remove(each)
            for home in run.homes:
                opening.waiting_tokens[home.shard] += run.remaining_tokens / len(run.homes)

    @property
    def _has_slot(self) -> bool:
        return any(home.has_slot for home in self._homes)

    def _passes(self, waits: Waiting) -> bool:
        if not self._has_slot:
            return True
        if all(isinstance(run.waiting, Generation) for run in self._runs.values()):
            waits.passes = 0
        return waits.passes < waiting.PASSES


@dataclass(frozen=True)
class Arrival:
    """What comes before a step: a sequence if `new_tokens` is more than 0, else a request."""

    step: int
    seed: int
    prompt: int
    new_tokens: int
    times: int
    cancelled: int | None  # step before which it is

    def submit(self, driver: Driver, number: int) -> None:
        if self.new_tokens:
            prompt = tokens(self.seed, self.prompt)
            driver.scheduler.generate(number, generation_of(prompt, self.new_tokens, number))
        else:
            driver.scheduler.submit(number, request_of(tokens(self.seed, self.prompt), [tokens(9, 70), tokens(8, 9)]))


arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 30),
        seed=st.integers(0, 5),
        prompt=st.sampled_from([1, 64, 65, 200, 700, 1300]),
        new_tokens=st.sampled_from([0, 0, 1, 20, 70]),
        times=st.sampled_from([1, 1, 3, 12]),
        cancelled=st.none() | st.integers(1, 60),
    ),
    min_size=1,
    max_size=8,
)
traffic = given(
    arrivals=arrivals,
    pages=st.sampled_from([26, 30, 60, 300]),
    shards=st.sampled_from([1, 1, 2]),
    prefix_cache=st.booleans(),
    max_running=st.sampled_from([4, 256]),
    tried=st.sampled_from([1, waiting.TRIED, 10**6]),
    passes=st.sampled_from([2, 5, 64]),
)


def steps_of(driver: Driver, arrivals: list[Arrival]) -> Iterator[StepPlan | None]:
    """Yield the plan of each step, with what arrives and is cancelled in between."""
    numbers = itertools.count()
    ids: dict[int, list[int]] = {}
    for step in itertools.count():
        for each, arrival in enumerate(arrivals):
            if arrival.step == step:
                ids[each] = [next(numbers) for _ in range(arrival.times)]
                for number in ids[each]:
                    arrival.submit(driver, number)
            if arrival.cancelled == step:
                for number in ids.get(each, ())[1::2] or ids.get(each, ()):
                    driver.scheduler.cancel(number)
        planned = len(driver.plans)
        if not driver.step() and step > 60:
            return
        yield driver.plans[-1] if len(driver.plans) > planned else None


def assert_equal_plans(one: StepPlan | None, other: StepPlan | None) -> None:
    if one is None or other is None:
        assert one is other
        return
    assert one.is_decoding == other.is_decoding
    assert one.dense_mask == other.dense_mask
    for mine, theirs in zip(one.shards, other.shards, strict=True):
        for field in dataclasses.fields(mine):
            assert np.array_equal(getattr(mine, field.name), getattr(theirs, field.name)), field.name
    for mine, theirs in zip(one.readings, other.readings, strict=True):
        assert (mine.owner.id, mine.shard, mine.first) == (theirs.owner.id, theirs.shard, theirs.first)
    for mine, theirs in zip(one.writes, other.writes, strict=True):
        assert (mine.shard, mine.start) == (theirs.shard, theirs.start)
        assert {shard: pages.tolist() for shard, pages in mine.pages.items()} == {
            shard: pages.tolist() for shard, pages in theirs.pages.items()
        }


def assert_plans_of_a_list(
    arrivals: list[Arrival], pages: int, shards: int, prefix_cache: bool, max_running: int, tried: int, passes: int
) -> None:
    shape = dataclasses.replace(SHAPE, shards=shards)
    options = {"prefix_cache": prefix_cache, "max_running": max_running}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "TRIED", tried)
        patch.setattr(waiting, "PASSES", passes)
        patch.setattr(scheduler, "PASSES", passes)
        patch.setattr(decoding, "SLOTS", SLOTS)
        patch.setattr(homes, "SLOTS", SLOTS)
        driver = driver_of(Scheduler(shape, pages, Layout(), **options), shape)
        listed = driver_of(InAList(shape, pages, Layout(), tried=tried, **options), shape)
        for one, other in zip(steps_of(driver, arrivals), steps_of(listed, arrivals), strict=True):
            assert_equal_plans(one, other)
    assert driver.tokens.keys() == listed.tokens.keys()
    assert driver.answers.keys() == listed.answers.keys()


@settings(max_examples=5, deadline=None)
@traffic
def test_steps_are_those_of_a_list_that_is_walked(**drawn: Any) -> None:
    assert_plans_of_a_list(**drawn)


@pytest.mark.full
@traffic
def test_steps_are_those_of_a_list_that_is_walked_more_examples(**drawn: Any) -> None:
    assert_plans_of_a_list(**drawn)


def test_a_sequence_begins_once_another_caches_its_prompt() -> None:
    """As many pages are free and cached as when it found no room, but now its own prompt is among the cached."""
    scores = [Arrival(20, 0, 1, 0, 1, None), Arrival(0, 0, 1, 0, 1, None), Arrival(9, 1, 1300, 0, 12, None)]
    sequences = [Arrival(0, 0, 1, 70, 12, 46), Arrival(25, 4, 700, 20, 12, 20)]
    assert_plans_of_a_list([*scores[:2], sequences[0], scores[2], sequences[1]], 26, 1, True, 4, 8, 5)


@pytest.mark.parametrize("tried", [1, pytest.param(10**6, marks=pytest.mark.full)])
def test_those_that_passed_are_counted_alike(tried: int) -> None:
    """A flood of requests passes sequences that wait for slots, then for pages, until no more may."""
    flood = [Arrival(step, step, 65, 0, 3, None) for step in range(2, 24)]
    long = [Arrival(1, seed, 1300, 20, 1, None) for seed in range(4)]
    assert_plans_of_a_list([Arrival(0, 1, 64, 60, 5, None), *long, *flood], 28, 1, True, 256, tried, 9)


def events_in(work: Callable[[], object]) -> tuple[int, int]:
    """Return the calls of functions, Python's and C's, and the lines run while `work` is called."""
    calls = lines = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[0])
    return calls, lines


def busy(kind: str, count: int) -> Driver:
    """Return a driver on which some run, and others wait for slots, for pages or for a turn."""
    run, pages, most = {"slots": (64, 300, 256), "pages": (20, 45, 256), "requests": (20, 300, 4)}[kind]
    driver = driver_of(Scheduler(SHAPE, pages, Layout(), max_running=most), SHAPE)
    for number in range(run):  # one after the other ends, so that others begin
        driver.scheduler.generate(number, generation_of(tokens(number, 30), 20 + number, number))
    for _ in range(10):
        driver.step()
    generation = generation_of(tokens(7, 1300 if kind == "pages" else 60), 50)
    score = request_of(tokens(5, 1300), [tokens(6, 250), tokens(7, 250)])
    for number in range(1000, 1000 + count):
        if kind != "requests":
            driver.scheduler.generate(number, generation)
        else:
            driver.scheduler.submit(-number, score)
    return driver


@pytest.mark.parametrize("many", [2_000, pytest.param(100_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["slots", "pages", "requests"])
def test_a_step_costs_the_same_however_many_wait(kind: str, many: int) -> None:
    costs = []
    for count in (FEW, many):
        driver, counted = busy(kind, count), []
        plan = driver.scheduler.next_step

        def next_step(plan: Any = plan, counted: list[tuple[int, int]] = counted) -> StepPlan | None:
            planned: list[StepPlan | None] = []
            counted.append(events_in(lambda: planned.append(plan())))
            return planned[0]

        driver.scheduler.next_step = next_step
        for _ in range(8):
            driver.step()
        costs.append(np.sum(counted, axis=0))
        assert len(driver.plans) > 10
        assert len(driver.scheduler._waiting) > 0
    few, of_many = costs
    assert (abs(of_many - few) < 0.05 * few).all(), (few, of_many)


def test_cancelling_a_waiting_run_costs_the_same_in_any_queue() -> None:
    costs = []
    for count in (FEW, 2_000):
        forget = busy("slots", count).scheduler.cancel
        costs.append(events_in(partial(forget, 1008)))
    assert costs[0] == costs[1]


def test_what_found_no_room_is_not_tried_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    begin = Generation.begin
    monkeypatch.setattr(Generation, "begin", lambda self, opening: tries.append(self.id) or begin(self, opening))
    driver = busy("pages", 2)
    driver.scheduler._admit()
    tries.clear()
    driver.scheduler._admit()
    assert tries == []
    driver.scheduler.cancel(next(iter(driver.scheduler._runs)))  # whose pages are free then
    driver.scheduler._admit()
    assert tries
