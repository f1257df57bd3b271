"""The scheduler, driven step by step with a device that remembers tokens instead of computing on them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_machine import TokenMachine, value_of

from mis_core.requests import EngineOutput, Layout, NewToken, Sampling, ScoreRequest
from mis_core.scheduler.plan import PAGE_SIZE, ShardPlan, StepPlan, StepShape, TileBudget
from mis_core.scheduler.reading import Values
from mis_core.scheduler.scheduler import Scheduler

pytestmark = pytest.mark.quick

SHAPE = StepShape(tokens=512, scored=64, contexts=4, pages_per_context=24, longest_item=256)
PAGES = 60
ALGORITHMS = st.sampled_from(["auto", "serial", "packed", "prefill_extend"])


def tokens(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, length).astype(np.int32)


def request_of(query: np.ndarray, items: list[np.ndarray], **fields: object) -> ScoreRequest:
    return ScoreRequest(
        query=query,
        item_tokens=np.concatenate(items).astype(np.int32),
        item_starts=np.r_[0, np.cumsum([len(item) for item in items])].astype(np.int32),
        context_lens=np.full(len(items), len(query), np.int32),
        label_ids=np.array([[1, 2]], np.int32),
        **fields,
    )


class Driver:
    """A scheduler and its device, with up to two steps under way, as the engine has them."""

    def __init__(
        self, shape: StepShape = SHAPE, pages: int = PAGES, window: int | None = None, states: int = 0, **options
    ) -> None:
        self.scheduler = Scheduler(shape, pages, Layout(), states=states, **options)
        self.machine = TokenMachine(pages, shape.shards, window, states)
        self.answers: dict[int, EngineOutput] = {}
        self.tokens: dict[int, list[NewToken]] = {}
        self.plans: list[StepPlan] = []
        self._under_way: list[tuple[StepPlan, list[Values]]] = []

    def submit(self, *requests: ScoreRequest) -> None:
        for request in requests:
            self.scheduler.submit(len(self.answers) + self.scheduler.num_requests, request)

    def step(self) -> bool:
        plan = self.scheduler.next_step()
        self.scheduler.check()
        if plan is not None:
            self.plans.append(plan)
            self._under_way.append((plan, self.machine.run(plan)))
        if self._under_way and (plan is None or len(self._under_way) > 1):
            done, values = self._under_way.pop(0)
            for number, output in self.scheduler.complete(done, values):
                if isinstance(output, NewToken):
                    self.tokens.setdefault(number, []).append(output)
                else:
                    self.answers[number] = output
            return True
        return plan is not None

    def run(self, *requests: ScoreRequest) -> list[EngineOutput]:
        first = len(self.answers) + self.scheduler.num_requests
        self.submit(*requests)
        for _ in range(5000):
            if not self.step():
                break
        assert not self.scheduler.has_work
        self.scheduler.check()
        assert self.scheduler.cache.held_pages == 0
        return [self.answers[first + number] for number in range(len(requests))]


def assert_right(request: ScoreRequest, answer: EngineOutput, window: int | None = None) -> None:
    starts, query = request.read_starts, request.query
    sequences = [query[: len(query) - request.query_reads + n + 1] for n in range(request.query_reads)]
    for item in range(request.num_items):
        own = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        whole = np.concatenate([query[: request.context_lens[item]], own])
        reads = int(starts[item + 1] - starts[item])
        ends = np.arange(len(own) - reads, len(own))
        if request.read_at is not None:
            ends = request.read_at[starts[item] - request.query_reads : starts[item + 1] - request.query_reads]
        sequences += [whole[: len(whole) - len(own) + end + 1] for end in ends.tolist()]
        if request.sampling is not None:
            assert answer.next_ids is not None
            assert answer.next_logits is not None
            assert answer.next_ids[item] == request.sampling.keys[item, 0] + len(whole)
            assert answer.next_logits[item] == value_of(whole[-(window or 0) :])
    values = np.array([value_of(sequence[-(window or 0) :]) for sequence in sequences])
    assert len(values) == request.num_reads
    assert answer.logits.tolist() == (values[:, None] + request.label_ids).astype(np.float32).tolist()
    if answer.log_sum_exp is not None:
        assert answer.log_sum_exp.tolist() == (-values).tolist()
    if request.top_tokens:
        assert answer.top_logits is not None
        assert answer.top_logits.tolist() == (values[:, None] - np.arange(request.top_tokens)).tolist()
    if request.query_reads:
        assert answer.cached_tokens == 0


@dataclass(frozen=True)
class Case:
    """A request in few words, so that a failure can be read."""

    shared: int  # tokens that queries of all seeds begin with
    seed: int
    query: int
    items: tuple[tuple[int, int], ...]  # seed and length of each
    layout: Layout
    salt: str | None
    softmax: bool
    ragged_contexts: bool  # as text joins its seams: items see less than the whole query
    ragged_labels: bool
    read: int  # rows read of the query and of each item, as far as there are so many; 0: the last one of each item
    draws: bool
    apart: bool = False  # whether the rows read of an item are spread over it, the last one among them

    def request(self) -> ScoreRequest:
        query = np.concatenate([tokens(0, 1500)[: self.shared], tokens(self.seed, 1000)])[: self.query]
        items = [tokens(seed, length) for seed, length in self.items]
        fields = {"layout": self.layout, "cache_salt": self.salt, "apply_softmax": self.softmax}
        request = request_of(query, items, **fields)
        numbers = np.arange(len(items), dtype=np.int32)
        if self.ragged_contexts:
            cut = np.minimum(numbers % 3, self.query - 1)
            request = dataclasses.replace(request, context_lens=request.context_lens - cut)
        if self.ragged_labels:
            request = dataclasses.replace(request, label_ids=np.stack([numbers % 3, numbers % 2], 1))
        if self.read:
            reads = np.minimum(self.read + numbers, [len(item) for item in items]).astype(np.int32)
            request = dataclasses.replace(request, read_lens=reads, query_reads=min(self.read, len(query)))
            if self.apart:
                spread = [
                    len(item) - 1 - np.arange(count)[::-1] * len(item) // count
                    for item, count in zip(items, reads.tolist(), strict=True)
                ]
                request = dataclasses.replace(request, read_at=np.concatenate(spread).astype(np.int32))
            if self.ragged_labels:
                of_each = np.arange(request.num_reads, dtype=np.int32)
                request = dataclasses.replace(request, label_ids=np.stack([of_each % 3, of_each % 2], 1))
        if self.draws:
            keys = np.stack([numbers * 7, numbers], 1)
            request = dataclasses.replace(request, sampling=Sampling(keys), top_tokens=3)
        return request


cases = st.builds(
    Case,
    shared=st.sampled_from([0, 64, 100, 300]),
    seed=st.integers(1, 3),
    query=st.sampled_from([1, 63, 64, 65, 128, 200, 640, 1000]),
    items=st.lists(
        st.tuples(st.integers(10, 12), st.sampled_from([1, 2, 20, 64, 130, 256, 257, 400])), min_size=1, max_size=12
    ).map(tuple),
    layout=st.builds(Layout, ALGORITHMS, st.sampled_from([None, "dense"]), st.sampled_from([None, 0, 1, 5])),
    salt=st.sampled_from([None, "a"]),
    softmax=st.booleans(),
    ragged_contexts=st.booleans(),
    ragged_labels=st.booleans(),
    read=st.sampled_from([0, 0, 1, 3, 63, 100, 1000]),
    draws=st.booleans(),
    apart=st.booleans(),
)


def visited_tiles(shard: ShardPlan, tiles: TileBudget) -> int:
    """Count the tiles of each context that some row of a block sees, block by block."""
    seen: dict[tuple[int, int], int] = {}
    each = zip(shard.starts, shard.lens, shard.context_ids, shard.context_lens, shard.paged, strict=True)
    for start, count, context, before, paged in each:
        for row in range(start, start + count):
            sees = before + (row - start + 1 if paged else 0)
            pair = row // tiles.rows, int(context)
            seen[pair] = max(seen.get(pair, 0), int(sees))
    return sum(-(-sees // tiles.keys) for sees in seen.values())


def assert_contexts_are_apart(shard: ShardPlan, alignment: int) -> None:
    """No run of so many rows holds segments of two contexts: its rows visit each other's."""
    rows = np.repeat(shard.starts - np.cumsum(shard.lens) + shard.lens, shard.lens) + np.arange(shard.lens.sum())
    runs, contexts = rows // alignment, np.repeat(shard.context_ids, shard.lens)
    assert len(np.unique(runs)) == len(np.unique(np.stack([runs, contexts]), axis=1).T)


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(st.lists(cases, min_size=1, max_size=5), min_size=1, max_size=3),
    shards=st.sampled_from([1, 1, 2, 4]),
    alignment=st.sampled_from([1, 64, 256, 512]),
    contexts=st.sampled_from([4, 64]),
    tiles=st.sampled_from([None, TileBudget(64, 512, 24), TileBudget(64, 512, 512)]),
    pages=st.sampled_from([26, 40, 200]),
    prefix_cache=st.booleans(),
    window=st.sampled_from([None, None, 1, 63, 64, 65, 130, 257, 700]),
    states=st.sampled_from([0, 0, 8, 13, 100]),
)
def test_every_item_sees_only_its_query_and_itself(
    batches, shards, alignment, contexts, tiles, pages, prefix_cache, window, states
) -> None:
    """Any mix of requests and layouts, far too few pages included, with two steps under way; or what a window leaves.

    Windows end at edges of pages and of steps, and beside them. With recurrent layers, states are few or many.
    """
    shape = dataclasses.replace(SHAPE, shards=shards, alignment=alignment, contexts=contexts, tiles=tiles)
    pages += 24 if states else 0  # an item may need all of its query again
    driver = Driver(shape, pages, window, states, prefix_cache=prefix_cache)
    for batch in ([case.request() for case in cases] for cases in batches):
        for request, answer in zip(batch, driver.run(*batch), strict=True):
            assert_right(request, answer, window)
    if not prefix_cache:
        assert driver.scheduler.cache.cached_pages == 0
    for plan in driver.plans:
        for shard in plan.shards:
            assert shard.rows <= SHAPE.tokens
            assert len(shard.scored_rows) <= SHAPE.scored
            assert_contexts_are_apart(shard, alignment)
            assert tiles is None or visited_tiles(shard, tiles) <= tiles.most


@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_that_is_off_by_one_is_noticed(off: int) -> None:
    request = request_of(tokens(1, 300), [tokens(10, 20)])
    driver = Driver(window=64 + off)
    (answer,) = driver.run(request)
    assert_right(request, answer, 64 + off)
    with pytest.raises(AssertionError):
        assert_right(request, answer, 64)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.lists(cases, min_size=2, max_size=6),
    cancelled=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=4),
    shards=st.sampled_from([1, 2]),
    states=st.sampled_from([0, 8, 20]),
)
def test_cancelling_anywhere_frees_everything_and_harms_nobody(batch, cancelled, shards, states) -> None:
    driver = Driver(dataclasses.replace(SHAPE, shards=shards), pages=50, states=states)
    batch = [case.request() for case in batch]
    driver.submit(*batch)
    gone = set()
    for number in range(4000):
        for request, when in cancelled:
            if when == number and driver.scheduler.cancel(request):
                gone.add(request)
                driver.scheduler.check()
        if not driver.step() and number > 12:
            break
    assert set(driver.answers) == set(range(len(batch))) - gone
    for number, answer in driver.answers.items():
        assert_right(batch[number], answer)
    assert driver.scheduler.cache.held_pages == 0
    assert driver.scheduler.num_requests == 0


def test_a_small_request_waits_for_two_steps_at_most() -> None:
    driver = Driver()
    driver.submit(request_of(tokens(1, 500), [tokens(n, 20) for n in range(5000)]))
    for _ in range(20):
        driver.step()
    planned = len(driver.plans)
    driver.submit(request_of(tokens(2, 200), [tokens(n, 20) for n in range(3)]))
    while 1 not in driver.answers:
        driver.step()
    owners = [{reading.owner.id for reading in plan.readings} for plan in driver.plans[planned:]]
    assert any(1 in owner for owner in owners[:2])


def test_requests_share_the_tokens_of_a_step() -> None:
    driver = Driver()
    driver.run(*(request_of(tokens(n, 64), [tokens(n + i, 20) for i in range(100)]) for n in (1, 200)))
    owners = [{reading.owner.id for reading in plan.readings} for plan in driver.plans]
    assert owners.count({0, 1}) >= 7  # 2 x 2,000 tokens, 512 a step


def test_no_more_rows_are_scored_than_a_step_has_room_for() -> None:
    driver = Driver()
    requests = [request_of(tokens(n, 64), [tokens(n + i, 1) for i in range(100)]) for n in (1, 200)]
    for request, answer in zip(requests, driver.run(*requests), strict=True):
        assert_right(request, answer)
    scored = [len(shard.scored_rows) for plan in driver.plans for shard in plan.shards]
    assert max(scored) == SHAPE.scored


def test_callers_of_one_item_fill_the_rows_of_their_steps() -> None:
    """A query begins at a page; items of any caller lie in what the one before leaves of its last."""
    driver = Driver(dataclasses.replace(SHAPE, tokens=2048, scored=256, contexts=256))
    requests = [request_of(tokens(n, 60), [tokens(n + 1, 15)]) for n in range(64)]
    for request, answer in zip(requests, driver.run(*requests), strict=True):
        assert_right(request, answer)
    computed, rows = sum(plan.new_tokens for plan in driver.plans), sum(plan.rows for plan in driver.plans)
    assert computed == 64 * 75
    assert rows <= 1.1 * computed


MIXED = StepShape(512, 64, 32, 8, 128, tiles=TileBudget(256, 256, 128))
TWO_KINDS = dataclasses.replace(SHAPE, alignment=256, mixed=MIXED)


def test_short_contexts_have_their_own_steps_in_any_company() -> None:
    """Which kind a request has follows from its longest context alone: its query, or what a paged item sees."""
    alone = {}
    for query, item in ((60, 20), (512, 20), (513, 20), (100, 400), (100, 412), (100, 413)):
        driver = Driver(TWO_KINDS)
        driver.submit(request_of(tokens(query, query), [tokens(item, item)]))
        driver.run()
        alone[query, item] = {plan.is_mixed for plan in driver.plans}
    assert alone == {
        (60, 20): {True}, (512, 20): {True}, (513, 20): {False},
        (100, 400): {True}, (100, 412): {True}, (100, 413): {False},
    }  # fmt: skip
    together = Driver(TWO_KINDS)
    together.submit(*[request_of(tokens(query, query), [tokens(item, item)]) for query, item in alone])
    together.run()
    kinds: dict[int, set[bool]] = {}
    for plan in together.plans:
        for reading in plan.readings:
            kinds.setdefault(reading.owner.id, set()).add(plan.is_mixed)
    assert [kinds[number] for number in sorted(kinds)] == [*alone.values()]


def test_steps_of_both_kinds_take_turns() -> None:
    driver = Driver(TWO_KINDS)
    driver.submit(request_of(tokens(1, 700), [tokens(n, 20) for n in range(60)]))
    driver.submit(request_of(tokens(2, 100), [tokens(n, 20) for n in range(100)]))
    driver.run()
    kinds = [plan.is_mixed for plan in driver.plans]
    assert kinds[:6] == [False, True] * 3


def test_callers_of_one_item_fill_mixed_steps() -> None:
    driver = Driver(TWO_KINDS, pages=200)
    driver.submit(*[request_of(tokens(n, 60), [tokens(n + 100, 15)]) for n in range(24)])
    driver.run()
    assert all(plan.is_mixed for plan in driver.plans)
    assert sum(plan.rows for plan in driver.plans) <= 24 * 85  # of 75 tokens; where contexts are aligned, 256


def test_requests_of_one_known_query_share_its_context() -> None:
    driver, query = Driver(), tokens(1, 200)
    driver.run(request_of(query, [tokens(2, 5)]))
    known = len(driver.plans)
    driver.run(*(request_of(query, [tokens(n, 15)]) for n in range(3, 12)))
    (step,) = driver.plans[known:]
    assert set(step.shards[0].context_ids.tolist()) == {0}


def test_tiles_of_a_shared_context_are_counted_once_for_a_block() -> None:
    shape = StepShape(
        tokens=256, scored=256, contexts=64, pages_per_context=128, longest_item=256, tiles=TileBudget(64, 512, 64)
    )
    driver, query = Driver(shape, pages=200), tokens(1, 8000)
    driver.run(request_of(query, [tokens(2, 5)]))
    known = len(driver.plans)
    driver.run(*(request_of(query, [tokens(n, 4)]) for n in range(3, 63)))
    (step,) = driver.plans[known:]
    assert visited_tiles(step.shards[0], TileBudget(64, 512, 64)) == 64


def test_sixteen_requests_share_steps() -> None:
    driver = Driver(dataclasses.replace(SHAPE, tokens=2048, scored=256, contexts=8))
    driver.run(*(request_of(tokens(n, 100), [tokens(n + i, 20) for i in range(3)]) for n in range(16)))
    assert len(driver.plans) <= 8
    mixed = [len(set(shard.context_ids.tolist())) for plan in driver.plans for shard in plan.shards]
    assert max(mixed) > 4
    assert any((~shard.paged).any() and shard.paged.any() for plan in driver.plans for shard in plan.shards)


class TestPrefixCache:
    def test_a_repeated_query_is_not_computed(self) -> None:
        driver = Driver()
        request = request_of(tokens(1, 500), [tokens(n, 20) for n in range(10)])
        (first,) = driver.run(request)
        computed = driver.machine.computed_tokens
        (second,) = driver.run(request)
        assert (first.cached_tokens, second.cached_tokens) == (0, 500)
        assert driver.machine.computed_tokens - computed == 200
        counts = driver.scheduler.cache
        assert (counts.cache_hit_tokens, counts.cache_missed_tokens, counts.evicted_pages) == (500, 500, 0)

    def test_a_longer_query_computes_the_rest_only(self) -> None:
        driver = Driver()
        query = tokens(1, 500)
        driver.run(request_of(query[:200], [tokens(2, 5)]))
        (answer,) = driver.run(request_of(query, [tokens(2, 5)]))
        assert answer.cached_tokens == 192  # whole pages
        assert driver.scheduler.cache.cache_missed_tokens == 200 + 308

    def test_salts_do_not_mix(self) -> None:
        driver = Driver()
        query, items = tokens(1, 300), [tokens(2, 5)]
        cached = [
            driver.run(request_of(query, items, cache_salt=salt))[0].cached_tokens
            for salt in (None, "a", "b", "", "a", None)
        ]
        assert cached == [0, 0, 0, 0, 300, 300]

    def test_two_requests_of_one_query_compute_it_once(self) -> None:
        driver = Driver()
        answers = driver.run(*(request_of(tokens(1, 1400), [tokens(n, 20)]) for n in range(2)))
        assert driver.machine.computed_tokens == 1400 + 40
        assert sum(answer.cached_tokens for answer in answers) == 1400

    def test_the_oldest_prefix_goes_first(self) -> None:
        driver = Driver(pages=26)
        items = [tokens(9, 5)]
        for seed in (1, 2, 1, 3):  # 10 pages each: query 2 has to go for query 3
            driver.run(request_of(tokens(seed, 640), items))
        assert driver.scheduler.cache.evicted_pages == 4
        assert driver.run(request_of(tokens(1, 640), items))[0].cached_tokens == 640
        assert driver.run(request_of(tokens(2, 640), items))[0].cached_tokens == 6 * PAGE_SIZE

    def test_flush(self) -> None:
        driver = Driver()
        request = request_of(tokens(1, 500), [tokens(2, 5)])
        driver.run(request)
        assert driver.scheduler.flush() == 8
        assert driver.run(request)[0].cached_tokens == 0


class TestLayouts:
    @pytest.fixture
    def small(self) -> ScoreRequest:
        return request_of(tokens(1, 100), [tokens(n, 100) for n in range(3)])

    def steps(self, request: ScoreRequest, **layout) -> Iterator[list[int]]:
        driver = Driver()
        driver.run(dataclasses.replace(request, layout=Layout(**layout)))
        return (len(plan.shards[0].lens) for plan in driver.plans)

    def test_the_query_alone_then_items(self, small: ScoreRequest) -> None:
        assert list(self.steps(small, algorithm="prefill_extend")) == [1, 3]

    def test_packed_in_one_step(self, small: ScoreRequest) -> None:
        assert list(self.steps(small, algorithm="packed")) == [4]

    def test_serial_is_one_sequence_a_step(self, small: ScoreRequest) -> None:
        assert list(self.steps(small, algorithm="serial")) == [1, 1, 1]

    def test_chunk_size_limits_the_items_of_a_step(self, small: ScoreRequest) -> None:
        assert list(self.steps(small, algorithm="prefill_extend", chunk_size=2)) == [1, 2, 1]
        assert list(self.steps(small, algorithm="prefill_extend", chunk_size=0)) == [1, 3]

    def test_a_dense_request_has_steps_of_its_own(self, small: ScoreRequest) -> None:
        driver = Driver()
        driver.run(dataclasses.replace(small, layout=Layout(mask="dense")), small)
        owners = [({r.owner.id for r in plan.readings}, plan.dense_mask) for plan in driver.plans]
        assert owners == [({0}, True), ({1}, False)]


def test_duplicates_are_computed_once() -> None:
    driver = Driver()
    request = request_of(tokens(1, 64), [tokens(n % 4, 20 + n % 2) for n in range(100)])
    (answer,) = driver.run(request)
    assert_right(request, answer)
    assert driver.machine.computed_tokens == 64 + 2 * 20 + 2 * 21


def test_items_whose_hashes_collide_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def integers(self, low: int, high: int, size: int, dtype: type) -> np.ndarray:
            return np.zeros(size, dtype)

    monkeypatch.setattr("mis_core.scheduler.answer._RNG", Zeros())
    request = request_of(tokens(1, 64), [tokens(n, 20) for n in range(5)])
    (answer,) = Driver().run(request)
    assert_right(request, answer)


def test_a_lost_cache_takes_its_requests_along_and_no_others() -> None:
    driver = Driver()
    begun, waiting = (request_of(tokens(n, 700), [tokens(9, 5)]) for n in (1, 2))
    driver.submit(begun)
    driver.step()
    driver.submit(waiting)
    assert driver.scheduler.abort() == [0]
    driver.scheduler.check()
    while 1 not in driver.answers:
        assert driver.step() or driver.answers
    assert_right(waiting, driver.answers[1])


def test_thousands_of_items_take_few_calls() -> None:
    """The host does not loop over items: its Python calls grow with steps."""
    import sys

    def calls(count: int) -> int:
        driver = Driver(dataclasses.replace(SHAPE, tokens=65536, scored=65536))
        found = 0

        def trace(*_: object) -> None:
            nonlocal found
            found += 1

        driver.submit(request_of(tokens(1, 64), [np.array([n, 1, 2, 3]) for n in range(count)]))
        sys.setprofile(trace)
        driver.scheduler.next_step()
        sys.setprofile(None)
        return found

    assert calls(5000) <= calls(50) + 40


@settings(deadline=None, max_examples=30)
@given(
    query=st.integers(0, 600),
    lens=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    algorithm=ALGORITHMS,
    shards=st.integers(1, 2),
)
def test_placements_are_what_the_steps_compute(query: int, lens: list[int], algorithm: str, shards: int) -> None:
    driver = Driver(dataclasses.replace(SHAPE, shards=shards))
    items = [tokens(number, length) for number, length in enumerate(lens)]
    items.append(items[0])  # computed once
    request = request_of(tokens(99, query), items, layout=Layout(algorithm), return_layout=True)
    (answer,) = driver.run(request)
    assert answer.placements is not None
    assert answer.steps == len(driver.plans)
    for step, plan in enumerate(driver.plans):
        for number, shard in enumerate(plan.shards):
            placed = answer.placements[(answer.placements[:, 0] == step) & (answer.placements[:, 1] == number)]
            np.testing.assert_array_equal(placed[:, 2], shard.starts)
            np.testing.assert_array_equal(placed[:, 4], shard.lens)
            np.testing.assert_array_equal(placed[:, 5], shard.context_lens)
            ends = np.cumsum(shard.lens)
            for (item, end), length in zip(zip(placed[:, 3], ends, strict=True), shard.lens, strict=True):
                computed = shard.token_ids[end - length : end]
                context = int(shard.context_lens[len(ends[ends < end])])
                whole = request.query if item == -1 else np.concatenate([request.query, items[item]])
                np.testing.assert_array_equal(computed, whole[context : context + length])
    assert set(answer.placements[:, 3]) - {-1} == set(range(len(lens)))


def test_placements_are_only_returned_to_whoever_wants_them() -> None:
    (answer,) = Driver().run(request_of(tokens(1, 10), [tokens(2, 3)]))
    assert (answer.placements, answer.steps) == (None, 1)
