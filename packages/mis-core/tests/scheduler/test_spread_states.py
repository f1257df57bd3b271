"""Large requests of hybrids over shards: one computes the query, the others get the states that items start from."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import SHAPE, Driver, assert_right, request_of, tokens
from test_spreading import ALL, FOUR, large, shards_of, small

from mis_core.requests import ScoreRequest
from mis_core.scheduler.answer import QUERY
from mis_core.scheduler.query_lock import QueryLock

pytestmark = pytest.mark.quick

STATES = 20


def driver_with(states: int = STATES, pages: int = 100) -> Driver:
    return Driver(FOUR, pages, states=states)


def test_one_shard_computes_the_query_and_all_get_its_states() -> None:
    driver, request = driver_with(), large(1)
    (cold,) = driver.run(request)
    assert_right(request, cold)
    assert cold.placements is not None
    is_query = cold.placements[:, 3] == QUERY
    assert set(cold.placements[is_query, 1].tolist()) == {0}
    assert shards_of(cold) == set(ALL)
    copies = [copy for plan in driver.plans for copy in plan.copies]
    assert [(copy.shard, sorted(copy.copies)) for copy in copies] == 2 * [(0, [1, 2, 3])]  # after 448 and 500 tokens


def test_a_known_query_is_known_to_all_and_copied_no_more() -> None:
    driver, request = driver_with(), large(1)
    driver.run(request)
    before = len(driver.plans)
    (warm,) = driver.run(request)
    assert_right(request, warm)
    assert (warm.cached_tokens, shards_of(warm)) == (500, set(ALL))
    assert not any(plan.copies or plan.exchanged_rows for plan in driver.plans[before:])
    for seed in range(4):  # each on a shard of its own
        driver.submit(dataclasses.replace(large(1), cache_salt=None, label_ids=np.array([[seed, 0]], np.int32)))
    driver.run()
    assert {driver.answers[2 + seed].cached_tokens for seed in range(4)} == {500}


def test_a_query_that_one_shard_knows_is_computed_for_all() -> None:
    driver, request = driver_with(), large(1)
    driver.run(small(1, 500))
    (answer,) = driver.run(request)
    assert_right(request, answer)
    assert (answer.cached_tokens, shards_of(answer)) == (0, set(ALL))


def test_long_items_are_computed_on_one_shard_each() -> None:
    driver = driver_with()
    request = request_of(tokens(1, 300), [tokens(n, 600) for n in range(2, 10)], return_layout=True)
    (answer,) = driver.run(request)
    assert_right(request, answer)
    assert answer.placements is not None
    shards = {item: {*answer.placements[answer.placements[:, 3] == item, 1].tolist()} for item in range(8)}
    assert shards == {item: {item % 4} for item in range(8)}


def callers(query: np.ndarray) -> list[ScoreRequest]:
    """Return a large request that is spread, and small ones of the same query."""
    items = [tokens(n, 20) for n in range(100)]
    return [request_of(query, items), *(request_of(query, [tokens(seed, 30)]) for seed in range(200, 208))]


def run_behind(driver: Driver, steps: int, requests: list[ScoreRequest]) -> None:
    """Run the first request alone for so many steps, then all."""
    first = len(driver.answers)
    driver.submit(requests[0])
    for _ in range(steps):
        driver.step()
    driver.submit(*requests[1:])
    while driver.step():
        pass
    for number, request in enumerate(requests, first):
        assert_right(request, driver.answers[number])


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_who_comes_while_states_are_on_their_way(steps: int) -> None:
    driver = driver_with()
    run_behind(driver, steps, callers(tokens(1, 900)))
    assert any(plan.copies for plan in driver.plans) == (steps > 0)  # none comes before the others


def test_a_state_that_is_read_before_it_arrives_is_noticed(monkeypatch) -> None:
    insert = QueryLock.insert

    def at_once(lock: QueryLock, count: int) -> tuple:
        inserted = insert(lock, count)
        lock.receive()
        return inserted

    monkeypatch.setattr(QueryLock, "insert", at_once)
    with pytest.raises(AssertionError, match="a state that nobody wrote"):
        run_behind(driver_with(), 1, callers(tokens(1, 900)))


@settings(max_examples=6, deadline=None)
@given(
    queries=st.lists(st.sampled_from([63, 64, 65, 300, 900, 1000]), min_size=1, max_size=3),
    steps=st.integers(0, 4),
    states=st.sampled_from([8, 10, STATES]),
    shards=st.sampled_from([2, 3]),
)
def test_states_are_where_they_are_read_whoever_comes_when(queries, steps, states, shards) -> None:
    driver = Driver(dataclasses.replace(SHAPE, shards=shards), 100, states=states)
    for length in queries:
        run_behind(driver, steps, callers(tokens(1, length)))
