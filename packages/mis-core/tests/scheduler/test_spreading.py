"""Which shards requests get, and what becomes of their pages there."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import SHAPE, Driver, assert_right, cases, request_of, tokens

from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.scheduler.plan import KEPT
from mis_core.scheduler.spreading import ShardState, rank_homes

pytestmark = pytest.mark.quick

FOUR = dataclasses.replace(SHAPE, shards=4)
ALL = (0, 1, 2, 3)


def state(waiting: float = 0, cached: int = 0, free: int = 10) -> ShardState:
    return ShardState(waiting, cached, free)


class TestTheChoice:
    def test_the_shard_where_least_waits(self) -> None:
        states = [state(300), state(100), state(200)]
        assert rank_homes(50, 50, states, is_alone=False) == [(1,), (2,), (0,)]

    def test_a_cached_shard_is_home_unless_its_queue_costs_more(self) -> None:
        assert rank_homes(500, 50, [state(), state(499, cached=500)], is_alone=False)[0] == (1,)
        assert rank_homes(500, 50, [state(), state(501, cached=500)], is_alone=False)[0] == (0,)

    def test_among_equals_the_one_with_most_free_pages(self) -> None:
        assert rank_homes(50, 50, [state(free=3), state(free=5), state(free=4)], is_alone=True)[0] == (1,)

    @pytest.mark.parametrize(("query", "items", "is_alone"), [(2000, 10_000, False), (100, 500, True)])
    def test_nothing_is_spread_that_is_small_or_not_alone(self, query: int, items: int, is_alone: bool) -> None:
        assert ALL not in rank_homes(query, items, [state()] * 4, is_alone=is_alone)[:4]

    def test_a_large_request_alone_is_spread_even_if_one_shard_hits(self) -> None:
        assert rank_homes(2000, 10_000, [state(), state(cached=2000), state(), state()], is_alone=True)[0] == ALL

    def test_a_hit_on_one_shard_is_used_when_the_query_dominates(self) -> None:
        assert rank_homes(9000, 500, [state(), state(cached=9000), state(), state()], is_alone=True)[0] == (1,)

    def test_a_query_that_one_shard_computes_costs_all_of_its_tokens(self) -> None:
        states = [state(), state(), state(), state()]
        assert rank_homes(3000, 600, states, is_alone=True, divides_query=True)[0] == ALL
        assert ALL not in rank_homes(3000, 600, states, is_alone=True, divides_query=False)[:4]
        assert rank_homes(3000, 700, states, is_alone=True, divides_query=False)[0] == ALL

    def test_one_shard_is_never_spread(self) -> None:
        assert rank_homes(2000, 10_000, [state()], is_alone=True) == [(0,)]


def small(query: int, length: int = 200, items: int = 3) -> ScoreRequest:
    return request_of(tokens(query, length), [tokens(n, 20) for n in range(items)], return_layout=True)


def large(query: int) -> ScoreRequest:
    return request_of(tokens(query, 500), [tokens(n, 20 + n % 3) for n in range(100)], return_layout=True)


def shards_of(answer: EngineOutput) -> set[int]:
    assert answer.placements is not None
    return set(answer.placements[:, 1].tolist())


def test_concurrent_requests_use_all_shards_without_exchange() -> None:
    driver = Driver(FOUR)
    answers = driver.run(*(large(seed) for seed in range(8)))
    assert sorted(sorted(shards_of(answer)) for answer in answers) == [[n] for n in ALL for _ in range(2)]
    assert not any(plan.exchanged_rows for plan in driver.plans)


def test_only_what_is_alone_and_large_is_spread() -> None:
    driver = Driver(FOUR)
    driver.submit(large(1))
    driver.step()
    driver.submit(large(2), small(3))
    while driver.step():
        pass
    first, *others = (driver.answers[number] for number in range(3))
    assert shards_of(first) == set(ALL)
    assert [len(shards_of(answer)) for answer in others] == [1, 1]
    assert len(shards_of(driver.run(small(4))[0])) == 1
    for number, request in enumerate([large(1), large(2), small(3)]):
        assert_right(request, driver.answers[number])


def test_a_spread_request_exchanges_its_query_once() -> None:
    driver = Driver(FOUR)
    (cold,) = driver.run(large(1))
    exchanged = [plan.exchanged_rows for plan in driver.plans]
    assert max(exchanged) == 256  # 500 tokens, 256 at a time
    (warm,) = driver.run(large(1))
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 500)
    assert shards_of(warm) == set(ALL)
    assert not any(plan.exchanged_rows for plan in driver.plans[len(exchanged) :])
    assert driver.scheduler.cache.cached_pages == 4 * 8
    assert driver.scheduler.cache.cache_missed_tokens == 500  # once for all shards


def test_shards_take_turns_at_the_query_of_a_spread_request() -> None:
    (answer,) = Driver(FOUR).run(request_of(tokens(1, 1000), [tokens(2, 300)], return_layout=True))
    assert answer.placements is not None
    query = answer.placements[answer.placements[:, 3] == -1]
    assert query[:, [0, 1, 4]].tolist() == [[0, 0, 256], [0, 1, 256], [0, 2, 256], [0, 3, 232]]


@pytest.mark.parametrize("items", [1, 5])
def test_the_last_items_of_a_spread_request_are_computed(items: int) -> None:
    """Each is longer than the part of the rest that a shard has."""
    driver = Driver(dataclasses.replace(FOUR, tokens=4096, longest_item=1024))
    request = request_of(tokens(1, 500), [tokens(2 + n, 1000) for n in range(items)], return_layout=True)
    (answer,) = driver.run(request)
    assert_right(request, answer)
    assert any(plan.exchanged_rows for plan in driver.plans)


def test_a_hit_on_one_shard_is_used_there() -> None:
    driver = Driver(FOUR)
    first, second, third = (driver.run(small(1))[0], driver.run(small(2))[0], driver.run(small(1))[0])
    assert shards_of(first) != shards_of(second)  # the second has more free pages elsewhere
    assert (shards_of(third), third.cached_tokens) == (shards_of(first), 200)


def test_a_spread_request_recomputes_a_query_one_shard_has() -> None:
    driver = Driver(FOUR)
    query, items = tokens(1, 500), [tokens(n, 20 + n % 3) for n in range(100)]
    (first,) = driver.run(request_of(query, items[:1], return_layout=True))
    (home,) = shards_of(first)
    before = len(driver.plans)
    spread = request_of(query, items, return_layout=True)
    (answer,) = driver.run(spread)
    assert_right(spread, answer)
    assert (shards_of(answer), answer.cached_tokens) == (set(ALL), 0)
    writes = [writes.pages for plan in driver.plans[before:] for writes in plan.writes]
    assert len(writes) == 2
    for pages in writes:  # those that are in use are never written
        assert [bool((pages[shard] == KEPT).all()) for shard in ALL] == [shard == home for shard in ALL]
    assert driver.scheduler.cache.cached_pages == 4 * 8


def test_looking_for_a_query_does_not_keep_it_from_eviction() -> None:
    driver = Driver(dataclasses.replace(SHAPE, shards=2), pages=26)
    driver.run(small(1, 640))  # on shard 0
    driver.run(small(2, 640))  # on shard 1
    cache = driver.scheduler._homes[0].cache
    lock = cache.lock(tokens(1, 640))
    assert cache.count_cached(lock) == 640
    assert (lock.done, cache.statistics.held_pages) == (0, 0)


def test_requests_begin_in_order_of_arrival() -> None:
    driver = Driver(dataclasses.replace(SHAPE, shards=2), pages=26)
    driver.submit(*(request_of(tokens(seed, 1400), [tokens(9, 5)], return_layout=True) for seed in range(6)))
    answered: list[int] = []
    while driver.step():
        answered += [number for number in driver.answers if number not in answered]
    assert [{*answered[n : n + 2]} for n in (0, 2, 4)] == [{0, 1}, {2, 3}, {4, 5}]
    for first, second in ((0, 1), (2, 3), (4, 5)):
        assert shards_of(driver.answers[first]) != shards_of(driver.answers[second])


@settings(max_examples=6, deadline=None)
@given(
    batches=st.lists(st.lists(cases, min_size=1, max_size=3), min_size=1, max_size=4),
    shards=st.sampled_from([2, 4]),
    pages=st.sampled_from([26, 200]),
    cancelled=st.sets(st.integers(0, 4)),
    states=st.sampled_from([0, 0, 8, 40]),
)
def test_spreading_and_cancelling_lose_no_page(batches, shards, pages, cancelled, states) -> None:
    pages += 24 if states else 0  # an item may need all of its query again
    driver = Driver(dataclasses.replace(SHAPE, shards=shards), pages=pages, states=states)
    requests: list[ScoreRequest] = []
    gone = set()
    for number, batch in enumerate(batches):
        for case in batch:
            requests.append(dataclasses.replace(case.request(), return_layout=True))
            driver.scheduler.submit(len(requests) - 1, requests[-1])
        driver.step()
        if number in cancelled and driver.scheduler.cancel(len(requests) - 1):
            gone.add(len(requests) - 1)
            driver.scheduler.check()
    while driver.step():
        pass
    assert driver.scheduler.cache.held_pages == 0
    assert set(driver.answers) == set(range(len(requests))) - gone
    for number, answer in driver.answers.items():
        assert_right(requests[number], answer)


@settings(max_examples=8, deadline=None)
@given(batch=st.lists(cases, min_size=2, max_size=5))
def test_requests_that_run_together_are_never_spread(batch) -> None:
    driver = Driver(FOUR, pages=200)
    requests = [dataclasses.replace(case.request(), return_layout=True) for case in batch]
    for request, answer in zip(requests, driver.run(*requests), strict=True):
        assert_right(request, answer)
        assert len(shards_of(answer)) == 1
    assert not any(plan.exchanged_rows for plan in driver.plans)
