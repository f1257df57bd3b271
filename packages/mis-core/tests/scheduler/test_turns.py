"""How requests take turns: small ones at once, large ones in parts, the oldest in every step."""

import dataclasses

import numpy as np
import pytest
from test_scheduler import SHAPE, Driver, assert_right, request_of, tokens

from mis_core.requests import ScoreRequest
from mis_core.scheduler.plan import StepPlan
from mis_core.scheduler.turns import oldest_first, share

WIDE = dataclasses.replace(SHAPE, tokens=1024, scored=128, contexts=256, longest_item=256)


def large(seed: int) -> ScoreRequest:
    return request_of(tokens(seed, 100), [tokens(seed + n, 20) for n in range(150)])


def small(seed: int) -> ScoreRequest:
    return request_of(tokens(seed, 300), [tokens(seed + 1, 30)])


def answers_in(plan: StepPlan) -> set[int]:
    return {reading.owner.id for reading in plan.readings}


def new_tokens_of(plan: StepPlan, length: int) -> int:
    """Return how many of a step's tokens are of items of this length."""
    return sum(int(shard.lens[shard.lens == length].sum()) for shard in plan.shards)


def test_a_small_request_waits_only_for_those_before_it() -> None:
    driver = Driver(WIDE, pages=400)
    driver.submit(*(large(1000 * n) for n in range(6)))
    for _ in range(3):
        driver.step()
    planned = len(driver.plans)
    driver.submit(small(7))
    while 6 not in driver.answers:
        driver.step()
    owners = [answers_in(plan) for plan in driver.plans[planned:]]
    # Three of the six at least have a share in each step, so it begins in the second and ends in the third.
    assert next(n for n, answered in enumerate(owners) if 6 in answered) <= 2


def test_many_small_requests_are_computed_one_after_the_other() -> None:
    driver = Driver(WIDE, pages=400)
    requests = [request_of(tokens(n, 200), [tokens(20 * n + item, 20) for item in range(10)]) for n in range(12)]
    driver.run(*requests)
    steps = [{n for n, plan in enumerate(driver.plans) if owner in answers_in(plan)} for owner in range(12)]
    assert all(max(numbers) - min(numbers) <= 1 for numbers in steps)
    assert len(driver.plans) == 5  # 4,800 tokens, 1,024 at a time


def test_the_oldest_has_a_third_of_every_step() -> None:
    driver = Driver(WIDE, pages=600)
    driver.submit(request_of(tokens(1, 100), [tokens(n, 21) for n in range(400)]))
    driver.step()
    for seed in range(0, 120, 12):
        driver.submit(*(request_of(tokens(9000 + n, 60), [tokens(n, 15)]) for n in range(seed, seed + 12)))
        driver.step()
    of_oldest = [new_tokens_of(plan, 21) for plan in driver.plans[2:]]
    assert min(of_oldest) >= 1024 // 3 // 64 * 64 - 21
    assert max(of_oldest) <= 1024 // 2, "the others have the rest"


def test_what_nobody_else_needs_goes_to_the_oldest() -> None:
    driver = Driver(WIDE, pages=400)
    driver.submit(large(1))
    driver.step()
    driver.submit(small(2))
    driver.step()
    (step,) = (plan for plan in driver.plans if 300 in plan.shards[0].lens)
    assert 1 in answers_in(step)
    assert step.new_tokens > 1024 - 64


@pytest.mark.parametrize("length", [129, 200, 256])
def test_items_that_a_step_takes_whole_have_no_pages(length: int) -> None:
    driver = Driver(WIDE)
    request = request_of(tokens(1, 40), [tokens(n, length) for n in range(9)])
    (answer,) = driver.run(request)
    assert_right(request, answer)
    assert sum(len(plan.writes) for plan in driver.plans) == 1  # the query's
    assert sum(plan.new_tokens for plan in driver.plans) == 40 + 9 * length


def test_longer_items_have_pages() -> None:
    driver = Driver(WIDE)
    request = request_of(tokens(1, 40), [tokens(n, 257) for n in range(9)])
    (answer,) = driver.run(request)
    assert_right(request, answer)
    assert sum(len(plan.writes) for plan in driver.plans) > 9


def test_shares() -> None:
    rule = {"least": 512, "alignment": 1, "is_oldest": False}
    assert share(2048, 1, 9000, **rule) == 2048
    assert share(2048, 2, 9000, **rule) == 1024
    assert share(2048, 300, 9000, **rule) == 512
    assert share(2048, 300, 1000, **rule) == 1000
    assert share(4096, 300, 9000, **rule | {"is_oldest": True}) == 22 * 64, "a third, in whole pages"
    assert share(4096, 300, 9000, **rule | {"is_oldest": True, "alignment": 512}) == 3 * 512
    assert share(4096, 300, 75, **rule) == 75
    assert share(4096, 300, 75, **rule | {"alignment": 512}) == 512, "a run of rows is not begun for less than it has"


def test_the_oldest_does_not_keep_whole_steps() -> None:
    assert oldest_first([2, 1], 1, tokens=512, least=512) == [2, 1]
    assert oldest_first([2, 1], 1, tokens=1024, least=512) == [1, 2]
    driver = Driver(dataclasses.replace(SHAPE, alignment=512))
    driver.submit(large(1))
    driver.step()
    driver.submit(small(2))
    for _ in range(4):
        driver.step()
    assert 1 in driver.answers
    assert np.any([0 in answers_in(plan) for plan in driver.plans[2:]])


def test_many_small_requests_do_not_starve_another_kind() -> None:
    mixed = dataclasses.replace(WIDE, pages_per_context=4)
    driver = Driver(dataclasses.replace(WIDE, contexts=8, alignment=256, mixed=mixed), pages=600)
    driver.submit(request_of(tokens(1, 700), [tokens(n, 21) for n in range(200)]))
    for seed in range(0, 120, 12):
        driver.submit(*(request_of(tokens(9000 + n, 60), [tokens(n, 15)]) for n in range(seed, seed + 12)))
        driver.step()
    kinds = [plan.is_mixed for plan in driver.plans]
    assert kinds[:8] in ([True, False] * 4, [False, True] * 4)
