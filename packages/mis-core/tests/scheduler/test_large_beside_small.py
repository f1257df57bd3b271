"""One large request and many of one item, counted in steps: neither holds up the other.

`packages/mis-server/benchmarks/stall.py --callers` measures the same by the clock.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from test_callers import PAGES, SHAPES, Load
from test_scheduler import Driver, request_of, tokens
from test_waiting import driver_of

from mis_core.requests import Layout, ScoreRequest
from mis_core.scheduler.scheduler import Scheduler

SHAPE = SHAPES["native"]
CALLERS = pytest.mark.parametrize("callers", [100, pytest.param(500, marks=pytest.mark.full)])


def large(items: int) -> ScoreRequest:
    return request_of(tokens(7, 60), list(tokens(8, 15 * items).reshape(items, 15)))


def small() -> Iterator[ScoreRequest]:
    return Load(1, 15, 60, known=False).requests()


def running(*requests: ScoreRequest) -> Driver:
    """Return a driver that has begun requests."""
    driver = driver_of(Scheduler(SHAPE, PAGES, Layout()), SHAPE)
    driver.submit(*requests)
    for _ in requests:
        driver.step()
    return driver


def waits(driver: Driver, requests: int) -> np.ndarray:
    """Submit so many requests of one item at once; return how many steps each one's answer is behind, `[requests]`."""
    began, before = len(driver.plans), len(driver.answers)
    driver.submit(*itertools.islice(small(), requests))
    found: list[int] = []
    while len(found) < requests:
        assert driver.step()
        found += [len(driver.plans) - began] * (len(driver.answers) - before - len(found))
    return np.array(found)


def test_a_request_of_one_item_is_answered_after_two_steps() -> None:
    """It has its query and its item in the next step, whose values come while the one after it runs."""
    assert waits(running(large(20_000)), 1).tolist() == [2]


@CALLERS
def test_requests_wait_at_most_twice_as_long_beside_a_large_one(callers: int) -> None:
    without, beside = waits(running(), callers), waits(running(large(20_000)), callers)
    for percentile in (50, 99):
        assert np.percentile(beside, percentile) <= 2 * np.percentile(without, percentile) + 1


@CALLERS
def test_a_large_request_takes_at_most_four_times_its_steps(callers: int) -> None:
    alone, driver, requests = running(), running(large(1_000)), small()
    alone.run(large(1_000))
    driver.submit(*itertools.islice(requests, callers))
    while 0 not in driver.answers and len(driver.plans) <= 4 * len(alone.plans):
        answered = len(driver.answers)
        driver.step()
        driver.submit(*itertools.islice(requests, len(driver.answers) - answered))
    assert len(driver.plans) <= 4 * len(alone.plans)
