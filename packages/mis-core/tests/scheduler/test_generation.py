"""Sequences that are written, on the device that remembers tokens: what each token sees, pages, places, turns."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import Driver, assert_right, request_of, tokens
from token_machine import value_of

from mis_core.requests import GenerateRequest, NewToken, Sampling
from mis_core.runner.memory import LEAST_SLOTS
from mis_core.scheduler.plan import PAGE_SIZE, SLOTS, StepShape
from mis_core.scheduler.waiting import PASSES

pytestmark = pytest.mark.quick

SHAPE = StepShape(tokens=512, scored=64, contexts=4, pages_per_context=24, longest_item=256)
_numbers = itertools.count(1_000_000)


def generation_of(prompt: np.ndarray, count: int, key: int = 0, **fields) -> GenerateRequest:
    return GenerateRequest(prompt, count, Sampling(np.array([[key, 0]], np.int32)), **fields)


def submit(driver: Driver, *requests: GenerateRequest) -> list[int]:
    numbers = [next(_numbers) for _ in requests]
    for number, request in zip(numbers, requests, strict=True):
        driver.scheduler.generate(number, request)
    return numbers


def finish(driver: Driver) -> None:
    for _ in range(20_000):
        if not driver.step():
            break
    assert not driver.scheduler.has_work
    driver.scheduler.check()
    cache = driver.scheduler.cache
    assert cache.held_pages == 0
    assert cache.free_pages + cache.cached_pages == cache.pages


def generate(driver: Driver, *requests: GenerateRequest) -> list[list[NewToken]]:
    numbers = submit(driver, *requests)
    finish(driver)
    return [driver.tokens[number] for number in numbers]


def assert_written(request: GenerateRequest, written: list[NewToken]) -> None:
    """Every token is made of all before it; the machine draws the key plus the position."""
    sequence = request.prompt.tolist()
    for place, token in enumerate(written):
        assert token.logprob == np.float32(value_of(np.array(sequence)))
        assert token.token_id == request.sampling.keys[0, 0] + len(sequence)
        assert (token.finish_reason is None) == (place < len(written) - 1)
        sequence.append(token.token_id)
    if written[-1].finish_reason == "stop":
        assert written[-1].token_id in request.end_ids
    else:
        assert len(written) == request.max_new_tokens
        assert not {token.token_id for token in written} & request.end_ids


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 700])
@pytest.mark.parametrize("count", [1, 2, 64, 130])
def test_one_sequence(length: int, count: int) -> None:
    driver, request = Driver(SHAPE), generation_of(tokens(1, length), count)
    (written,) = generate(driver, request)
    assert_written(request, written)


def test_an_end_is_noticed_one_step_late_and_nobody_sees_more() -> None:
    driver, request = Driver(SHAPE), generation_of(tokens(1, 10), 50, end_ids=frozenset([13]))
    (written,) = generate(driver, request)
    assert [token.token_id for token in written] == [10, 11, 12, 13]
    assert written[-1].finish_reason == "stop"
    assert sum(plan.is_decoding for plan in driver.plans) == 4


def test_the_next_turn_finds_what_was_written() -> None:
    driver, first = Driver(SHAPE), generation_of(tokens(1, 100), 100)
    (written,) = generate(driver, first)
    whole = np.r_[first.prompt, [token.token_id for token in written], 5, 6].astype(np.int32)
    second = generation_of(whole, 3)
    (then,) = generate(driver, second)
    assert then[0].cached_tokens == 192 // PAGE_SIZE * PAGE_SIZE
    assert_written(second, then)
    assert generate(driver, generation_of(whole, 3, cache_salt="other"))[0][0].cached_tokens == 0


def test_sequences_waiting_for_slots_hold_up_no_scores() -> None:
    driver = Driver(SHAPE, pages=200)
    requests = [generation_of(tokens(number, 5), 80, key=number) for number in range(SLOTS + 6)]
    numbers = submit(driver, *requests)
    score = request_of(tokens(1, 100), [tokens(2, 9)])
    driver.submit(score)
    for _ in range(60):
        driver.step()
    assert len(driver.answers) == 1
    assert not any(number in driver.tokens for number in numbers[SLOTS:])
    finish(driver)
    assert_right(score, *driver.answers.values())
    for number, request in zip(numbers, requests, strict=True):
        assert_written(request, driver.tokens[number])


def test_scores_and_sequences_take_turns() -> None:
    driver = Driver(SHAPE, pages=200)
    requests = [generation_of(tokens(number, 70), 30, key=number) for number in range(3)]
    numbers = submit(driver, *requests)
    for _ in range(4):
        driver.step()
    driver.submit(request_of(tokens(1, 100), [tokens(seed, 200) for seed in range(40)]))
    first = len(driver.plans)
    for _ in range(20):
        driver.step()
    kinds = [plan.is_decoding for plan in driver.plans[first : first + 20]]
    assert all(kind != following for kind, following in itertools.pairwise(kinds))
    assert all(len(plan.readings) == 3 for plan in driver.plans[first : first + 20] if plan.is_decoding)
    finish(driver)
    for number, request in zip(numbers, requests, strict=True):
        assert_written(request, driver.tokens[number])


def test_a_preempted_sequence_begins_again_and_repeats_no_token() -> None:
    """Three sequences that end with 12 pages each, where there are 25."""
    driver = Driver(SHAPE, pages=25)
    requests = [generation_of(tokens(number, 300), 450, key=number) for number in range(3)]
    for request, written in zip(requests, generate(driver, *requests), strict=True):
        assert_written(request, written)
    # Whoever was ended begins with a segment again, and is read at its end.
    assert sum(len(plan.readings) for plan in driver.plans if not plan.is_decoding) > 3


def test_with_states_a_sequence_without_pages_begins_anew() -> None:
    """It begins with its prompt, generates the same tokens again, and every token is read once."""
    driver = Driver(SHAPE, pages=25, states=40)
    requests = [generation_of(tokens(number, 300), 450, key=number) for number in range(3)]
    for request, written in zip(requests, generate(driver, *requests), strict=True):
        assert_written(request, written)
    begun = [plan for plan in driver.plans if plan.readings and not plan.is_decoding]
    assert sum(len(plan.readings) for plan in begun) > 3
    assert max(plan.shards[0].context_lens.max() for plan in begun) == 256  # nothing behind a prompt
    assert sum(len(plan.readings) for plan in driver.plans) > 3 * 450


def test_a_sequence_holds_one_state_and_gives_it_back() -> None:
    driver = Driver(SHAPE, pages=200, states=40)
    submit(driver, *(generation_of(tokens(1, 300), 30, key=number) for number in range(5)))
    for _ in range(12):
        driver.step()
    (home,) = driver.scheduler._homes
    assert home.state_headroom == 40 - 5
    finish(driver)
    assert home.state_headroom == 40


def test_sequences_leave_states_for_scores() -> None:
    driver = Driver(SHAPE, pages=200, states=LEAST_SLOTS)
    numbers = submit(driver, *(generation_of(tokens(number, 300), 60, key=number) for number in range(20)))
    for _ in range(20):
        driver.step()
    assert 1 < len(driver.scheduler._homes[0].slots) < 20
    driver.submit(request_of(tokens(99, 300), [tokens(98, 400), tokens(97, 400)]))
    for _ in range(12):
        driver.step()
    assert len(driver.answers) == 1
    finish(driver)
    assert all(len(driver.tokens[number]) == 60 for number in numbers)


def test_pages_promised_to_scores_are_not_taken() -> None:
    driver = Driver(SHAPE, pages=26)
    request, score = generation_of(tokens(0, 60), 600), request_of(tokens(1, 500), [tokens(2, 400), tokens(3, 700)])
    (number,) = submit(driver, request)
    driver.submit(score)
    finish(driver)
    assert_written(request, driver.tokens[number])
    assert_right(score, *driver.answers.values())


def test_a_sequence_waiting_for_pages_holds_up_no_scores() -> None:
    driver = Driver(SHAPE, pages=25)
    first, second = generation_of(tokens(0, 60), 900), generation_of(tokens(1, 1300), 5)
    numbers = submit(driver, first)
    for _ in range(400):
        driver.step()
    numbers += submit(driver, second)
    scores = [request_of(tokens(seed, 60), [tokens(9, 9)]) for seed in range(3 * PASSES)]
    driver.submit(*scores)
    for _ in range(300):
        driver.step()
    assert len(driver.answers) == len(scores)
    assert numbers[1] not in driver.tokens
    finish(driver)
    for number, request in zip(numbers, (first, second), strict=True):
        assert_written(request, driver.tokens[number])


def test_a_flood_of_scores_does_not_starve_a_waiting_sequence() -> None:
    driver = Driver(SHAPE, pages=25)
    scores = (request_of(tokens(seed, 500), [tokens(seed + 1, 60)]) for seed in itertools.count(10))
    driver.submit(*itertools.islice(scores, 2))
    driver.step()
    request = generation_of(tokens(0, 1300), 40)
    (number,) = submit(driver, request)
    while number not in driver.tokens:
        while driver.scheduler.num_requests < 6:
            driver.submit(next(scores))
        driver.step()
        assert len(driver.answers) <= PASSES + 6
    assert len(driver.answers) >= PASSES
    finish(driver)
    assert_written(request, driver.tokens[number])


@dataclass(frozen=True)
class Case:
    """A sequence in few words."""

    shared: int
    seed: int
    prompt: int
    count: int
    end: int | None
    salt: str | None
    begins: int  # step before which it comes
    ends: int | None  # step before which it is cancelled

    @property
    def request(self) -> GenerateRequest:
        prompt = np.concatenate([tokens(0, self.shared), tokens(self.seed, self.prompt)])
        ends = frozenset() if self.end is None else frozenset([len(prompt) + self.end + self.seed])
        return generation_of(prompt, self.count, self.seed, end_ids=ends, cache_salt=self.salt)


cases = st.builds(
    Case,
    shared=st.sampled_from([0, 64, 130, 320]),
    seed=st.integers(0, 3),
    prompt=st.integers(1, 300),
    count=st.integers(1, 200),
    end=st.none() | st.integers(0, 200),
    salt=st.sampled_from([None, "a"]),
    begins=st.integers(0, 60),
    ends=st.none() | st.integers(0, 250),
)


anything = given(
    cases=st.lists(cases, min_size=1, max_size=12),
    scores=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(1, 500)), max_size=4),
    pages=st.integers(26, 60),
    shards=st.integers(1, 2),
    prefix_cache=st.booleans(),
    states=st.sampled_from([0, LEAST_SLOTS, 40]),
)


@settings(max_examples=20, deadline=None)
@anything
def test_every_token_is_computed_from_all_tokens_before_it(**drawn: Any) -> None:
    assert_made_of_all_before_it(**drawn)


@pytest.mark.full
@settings(max_examples=200, deadline=None)
@anything
def test_whatever_runs_beside_it_more_examples(**drawn: Any) -> None:
    assert_made_of_all_before_it(**drawn)


def assert_made_of_all_before_it(
    cases: list[Case], scores: list[tuple[int, int, int]], pages: int, shards: int, prefix_cache: bool, states: int
) -> None:
    shape = StepShape(tokens=512, scored=64, contexts=4, pages_per_context=24, longest_item=256, shards=shards)
    driver = Driver(shape, pages, prefix_cache=prefix_cache, states=states)
    wanted = [request_of(tokens(seed, query), [tokens(9, item), tokens(8, 3)]) for seed, query, item in scores]
    driver.submit(*wanted)
    numbers: dict[Case, int] = {}
    for step in range(260):
        for case in cases:
            if case.begins == step and case not in numbers:
                (numbers[case],) = submit(driver, case.request)
            if case.ends == step and case in numbers:
                driver.scheduler.cancel(numbers[case])
                driver.scheduler.check()
        driver.step()
    finish(driver)
    for request, answer in zip(wanted, (driver.answers[key] for key in sorted(driver.answers)), strict=True):
        assert_right(request, answer)
    for case, number in numbers.items():
        written = driver.tokens.get(number, [])
        if case.ends is None:
            assert_written(case.request, written)
        for place, token in enumerate(written):
            sequence = np.r_[case.request.prompt, [each.token_id for each in written[:place]]]
            assert token.logprob == np.float32(value_of(sequence))
