"""Where recurrent layers keep states: which queries go on from where, what is kept, and what is noticed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import SHAPE, Driver, assert_right, cases, request_of, tokens

from mis_core.cache import PrefixCache
from mis_core.requests import ScoreRequest
from mis_core.scheduler.plan import PAGE_SIZE
from mis_core.scheduler.recurrence import begun_at_states

pytestmark = pytest.mark.quick

STATES = 40


def driver_with(states: int = STATES, **options: int) -> Driver:
    return Driver(states=states, **options)


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(st.lists(cases, min_size=1, max_size=6), min_size=1, max_size=4),
    pages=st.sampled_from([50, 80, 300]),
    states=st.sampled_from([8, 9, 16, 60]),
)
def test_every_row_follows_the_state_of_all_tokens_before(batches, pages, states) -> None:
    driver = Driver(dataclasses.replace(SHAPE, contexts=64), pages, states=states)
    for batch in ([case.request() for case in batch] for batch in batches):
        for request, answer in zip(batch, driver.run(*batch), strict=True):
            assert_right(request, answer)


def test_a_repeated_query_is_not_computed() -> None:
    driver, request = driver_with(), request_of(tokens(1, 500), [tokens(n, 20) for n in range(10)])
    (first,) = driver.run(request)
    computed = driver.machine.computed_tokens
    (second,) = driver.run(request)
    assert (first.cached_tokens, second.cached_tokens) == (0, 500)
    assert driver.machine.computed_tokens - computed == 200


def test_a_longer_query_goes_on_after_the_last_whole_page() -> None:
    driver, query = driver_with(), tokens(1, 500)
    driver.run(request_of(query[:200], [tokens(2, 5)]))
    (answer,) = driver.run(request_of(query, [tokens(2, 5)]))
    assert answer.cached_tokens == 192


def test_a_branching_query_resumes_at_a_state_rewriting_no_page() -> None:
    """The pages behind the deepest state are there; they are computed again, and not written."""
    driver, query = driver_with(), tokens(1, 1500)
    driver.run(request_of(query, [tokens(2, 5)]))  # states after 512, 1,024 (chunks), 1,472 and 1,500
    other = np.concatenate([query[:900], tokens(3, 100)])
    (answer,) = driver.run(request_of(other, [tokens(2, 5)]))
    assert answer.cached_tokens == 512
    pages = [writes.pages[0] for plan in driver.plans for writes in plan.writes]
    written = np.concatenate(pages)
    assert (written[written >= 0].size, (written < 0).sum()) == (24 + 2, 6)  # pages 512 to 896 are there


def test_a_query_without_its_state_is_computed_again_and_right() -> None:
    driver = driver_with(8)
    request = request_of(tokens(1, 500), [tokens(2, 5)])
    driver.run(request)
    for seed in range(3, 9):
        driver.run(request_of(tokens(seed, 200), [tokens(2, 5)]))
    (answer,) = driver.run(request)
    assert answer.cached_tokens == 0  # its pages are there, and its states are not
    assert_right(request, answer)


def run_query(cache: PrefixCache, query: list[int], *, chunk: int = 2048) -> int:
    """Lock, compute and release a query; return how many of its tokens were found."""
    lock = cache.lock(np.array(query, np.int32))
    cache.match(lock)
    found = lock.done
    while lock.done < len(query):
        cache.insert(lock, min(chunk, len(query) - lock.done))
    cache.release(lock)
    return found


def test_a_query_that_others_went_on_from_is_not_the_first_to_go() -> None:
    cache = PrefixCache(2000, PAGE_SIZE, states=8)
    old, query = [[*range(10_000 * n, 10_000 * n + 100)] for n in (1, 2, 3)], [*range(6000)]
    for each in (old[0], old[1], query, [*range(5960), *range(90_000, 90_300)], old[2]):
        run_query(cache, each)
    assert run_query(cache, query) == 6000
    assert run_query(cache, old[0]) == 0  # least recently used


def test_a_state_that_others_read_is_promised_anew() -> None:
    """Letting go of it gives no slot back."""
    cache = PrefixCache(200, PAGE_SIZE, states=4)
    reader, longer = (cache.lock(np.array(query, np.int32)) for query in (range(100), [*range(64), *range(1000, 1600)]))
    cache.insert(reader, 100)
    assert cache.match(longer) == 64
    assert longer.missing_states == 3
    assert cache.states is not None
    assert cache.states.available == 2  # so it waits until the reader is done
    cache.release(reader)
    assert longer.missing_states == 2
    while longer.done < 664:
        cache.insert(longer, min(64, 664 - longer.done))
    cache.check()


def test_long_items_take_two_slots_of_a_step_at_most() -> None:
    """While one item of a step ends and another is cut, a third would take the slot that nobody promised."""
    shape = dataclasses.replace(SHAPE, tokens=2048, scored=256, contexts=256, pages_per_context=128, longest_item=512)
    driver, cached = Driver(shape, 2000, states=8), [tokens(seed, 130) for seed in (1, 2)]
    driver.run(*(request_of(query, [tokens(3, 50)]) for query in cached))
    driver.submit(request_of(tokens(4, 130), [tokens(seed, 600) for seed in range(10, 30)]))
    driver.step()
    driver.run(*(request_of(query, [tokens(n, 70) for n in (5, 6)]) for query in cached))
    assert len(driver.answers) == 5


def test_two_requests_of_one_query_compute_it_once() -> None:
    driver = driver_with()
    answers = driver.run(*(request_of(tokens(1, 1400), [tokens(n, 20)]) for n in range(2)))
    assert driver.machine.computed_tokens == 1400 + 40
    assert sum(answer.cached_tokens for answer in answers) == 1400


def test_no_slot_is_lost_over_many_requests() -> None:
    driver = driver_with(10)
    for seed in range(60):
        long = tokens(seed % 7, 130 + 50 * (seed % 11))
        driver.run(*(request_of(long[: len(long) - cut], [tokens(n, 300) for n in range(3)]) for cut in (0, 70)))
    assert driver.scheduler.cache.evicted_states > 100
    driver.scheduler.flush()
    assert (driver.scheduler.cache.free_states, driver.scheduler.cache.states) == (10, 10)


@pytest.mark.parametrize("query", [1, 63, 64, 65, 200])
def test_where_an_item_begins_depends_on_its_query_and_itself(query: int) -> None:
    """Its own tokens, and in front of them what the query has behind the state; whatever other items there are."""
    cuts = np.minimum(np.arange(4), query)
    request = request_of(tokens(1, query), [tokens(n, 10 + n) for n in range(4)])
    request = dataclasses.replace(request, context_lens=(query - cuts).astype(np.int32))
    whole = begun_at_states(request)
    assert whole.context_lens[0] == query
    assert {*whole.context_lens[1:].tolist()} <= {0, (query - 1) // 64 * 64}
    for item in range(4):
        alone = begun_at_states(_only(request, item))
        assert alone.context_lens[0] == whole.context_lens[item]
        assert alone.item_tokens.tolist() == whole.item_tokens[slice(*whole.item_starts[item : item + 2])].tolist()
        assert _sequence(whole, item) == _sequence(request, item)


def _only(request: ScoreRequest, item: int) -> ScoreRequest:
    own = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
    starts = np.array([0, len(own)], np.int32)
    return dataclasses.replace(
        request, item_tokens=own, item_starts=starts, context_lens=request.context_lens[item : item + 1]
    )


def _sequence(request: ScoreRequest, item: int) -> list[int]:
    own = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
    return [*request.query[: request.context_lens[item]].tolist(), *own.tolist()]


def test_the_machine_notices_a_state_of_other_tokens() -> None:
    driver = driver_with()
    driver.run(request_of(tokens(1, 500), [tokens(2, 5)]))
    slots = driver.machine.states[0]
    slots[:] = [(*state[:-1], 7) for state in slots]
    with pytest.raises(AssertionError, match="other tokens"):
        driver.run(request_of(tokens(1, 500), [tokens(3, 5)]))
