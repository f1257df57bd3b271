"""The simulation: beside closed forms, a plain LRU list, and the real scheduler."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from token_machine import TokenMachine

from mis_bench.capacity.queries import draw_queries, expected_hit_rate, zipf_shares
from mis_bench.capacity.replica import ReplicaShape, RequestShape, SimulatedReplica
from mis_bench.capacity.rows import StepRoom
from mis_bench.capacity.simulation import Loss, Outcome, Scenario, simulate
from mis_core.requests import Layout, ScoreRequest
from mis_core.scheduler.plan import StepShape
from mis_core.scheduler.scheduler import Scheduler

REQUEST = RequestShape(query_tokens=512, item_tokens=128)  # of 8 pages, which lie together
RNG_SEED = 3


def shape(**fields: Any) -> ReplicaShape:
    usual: dict = {"cache_tokens": 20 * 512, "room": StepRoom(1024), "step_s": 1e-4, "row_s": 1e-5}
    return ReplicaShape(**usual | fields)


def drawn(shares: np.ndarray, requests: int) -> np.ndarray:
    return draw_queries(shares, requests, np.random.default_rng(RNG_SEED))


class TestTheCache:
    def test_one_caller_finds_what_an_lru_list_has(self) -> None:
        queries = drawn(zipf_shares(60, 0.8), 1500)
        found = simulate(Scenario(replicas=1, replica=shape(), request=REQUEST, callers=1), queries)
        kept: OrderedDict[int, None] = OrderedDict()
        hits = []
        for query in queries.tolist():
            hits.append(query in kept)
            kept[query] = None
            kept.move_to_end(query)
            if len(kept) > 20:
                kept.popitem(last=False)
        assert found.cached.tolist() == [float(hit) for hit in hits]
        assert 0.2 < np.mean(hits) < 0.9

    # The same draws in every run: about one of a thousand differs, where a step ends with room for part of an item or
    # not, and another query is the oldest then.
    @settings(max_examples=25, deadline=None, derandomize=True)
    @example(batches=[[0, 1, 3, 0], [2], [0]], length=700, pages=40)  # a step ends with four tokens of an item to spare
    @example(
        batches=[[0, 3, 1, 2], [3, 3, 0, 0]], length=700, pages=24
    )  # a full step computes pages for another request
    @given(
        batches=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4), max_size=12),
        length=st.sampled_from([64, 100, 300, 700]),
        pages=st.sampled_from([24, 40]),
    )
    def test_cached_tokens_are_those_of_the_real_scheduler(
        self, batches: list[list[int]], length: int, pages: int
    ) -> None:
        step = StepShape(tokens=512, scored=64, contexts=16, pages_per_context=16, longest_item=128)
        scheduler, machine = Scheduler(step, pages, Layout("packed")), TokenMachine(pages)
        environment = simpy.Environment()
        replica = SimulatedReplica(
            environment,
            shape(cache_tokens=pages * 64, room=StepRoom(512)),
            RequestShape(query_tokens=length, item_tokens=4 * 16, item_length=16),
        )
        number = 0
        for batch in batches:
            expected: dict[int, int] = {}
            events = []
            for query in batch:
                scheduler.submit(number, real_request(query, length, number))
                events.append(replica.serve(query))
                number += 1
            while scheduler.has_work:
                plan = scheduler.next_step()
                assert plan is not None
                expected |= {key: answer.cached_tokens for key, answer in scheduler.complete(plan, machine.run(plan))}
            environment.run()
            assert [event.value for event in events] == [expected[key] for key in sorted(expected)]

    @pytest.mark.parametrize("kind", ["mixed", "aligned"])
    @pytest.mark.parametrize(("length", "items"), [(60, 1), (200, 16), (300, 3), (700, 40)])
    def test_rows_are_those_of_the_real_scheduler(self, length: int, items: int, kind: str) -> None:
        """Within a tenth: the real one goes on with whoever it ended with, and keeps short items off the edges."""
        room = StepRoom(1024) if kind == "mixed" else StepRoom(1024, alignment=512, contexts=8)
        step = StepShape(1024, 256, room.contexts, 16, room.longest_item, room.alignment)
        scheduler, machine = Scheduler(step, 2000, Layout("packed")), TokenMachine(2000)
        environment = simpy.Environment()
        request = RequestShape(query_tokens=length, item_tokens=items * 16, item_length=16)
        replica = SimulatedReplica(environment, shape(cache_tokens=2000 * 64, room=room), request)
        for query in range(24):
            scheduler.submit(query, real_request(query, length, query * items, items))
            replica.serve(query)
        rows = 0
        while (plan := scheduler.next_step()) is not None:
            rows += -(-plan.rows // 64) * 64
            scheduler.complete(plan, machine.run(plan))
        environment.run()
        assert replica.tokens == 24 * (length + items * 16)
        assert replica.rows == pytest.approx(rows, rel=0.1)

    def test_a_warm_start_is_where_a_long_run_ends(self) -> None:
        shares = zipf_shares(400, 0.9)
        scenario = Scenario(replicas=4, replica=shape(), request=REQUEST, rate=100, balance_factor=0)
        long = simulate(scenario, drawn(shares, 4000))
        warm = simulate(scenario, drawn(shares, 2000), shares=shares)
        assert warm.hit_rate() == pytest.approx(long.hit_rate(2000), abs=0.03)
        assert long.hit_rate(0, 50) < 0.5 * long.hit_rate(2000)

    @pytest.mark.parametrize(
        ("queries", "exponent"),
        [pytest.param(100, 1.2, marks=pytest.mark.full), (500, 0.8), pytest.param(2000, 0.6, marks=pytest.mark.full)],
    )
    def test_hit_rates_are_those_of_che(self, queries: int, exponent: float) -> None:
        shares = zipf_shares(queries, exponent)
        scenario = Scenario(replicas=1, replica=shape(cache_tokens=60 * 512), request=REQUEST, callers=1)
        found = simulate(scenario, drawn(shares, 3000), shares=shares)
        assert found.hit_rate() == pytest.approx(expected_hit_rate(shares, 60), abs=0.03)

    def test_items_need_not_be_equally_long(self) -> None:
        request = RequestShape(query_tokens=700, item_tokens=3, item_length=2)
        scenario = Scenario(replicas=1, replica=shape(room=StepRoom(256)), request=request, callers=2)
        assert simulate(scenario, np.zeros(4, np.int64)).failed == 0

    def test_a_query_that_does_not_fit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="does not fit a cache of 448"):
            simulate(Scenario(replicas=1, replica=shape(cache_tokens=448), request=REQUEST), np.array([0]))


def real_request(query: int, length: int, number: int, items: int = 4) -> ScoreRequest:
    """Items differ, so that none is computed once for several."""
    return ScoreRequest(
        query=np.full(length, query, np.int32),
        item_tokens=np.arange(16 * items, dtype=np.int32) + 100 * number,
        item_starts=np.arange(0, 16 * items + 1, 16, dtype=np.int32),
        context_lens=np.full(items, length, np.int32),
        label_ids=np.array([[1, 2]], np.int32),
    )


class TestTime:
    def run(self, replica: ReplicaShape, rate: float, requests: int = 4000) -> Outcome:
        """Ask one replica that has all queries."""
        request = RequestShape(query_tokens=64, item_tokens=2560)
        scenario = Scenario(replicas=1, replica=replica, request=request, rate=rate, balance_factor=0)
        return simulate(scenario, np.zeros(requests, np.int64), shares=np.ones(1))

    @pytest.mark.parametrize("load", [pytest.param(0.3, marks=pytest.mark.full), 0.6])
    def test_waits_lie_between_a_queue_and_processor_sharing(self, load: float) -> None:
        """Mean latencies, in services: M/D/1 has `1 + load / (2 (1 - load))`, processor sharing `1 / (1 - load)`.

        Requests share steps, but the oldest comes first.
        """
        found = self.run(shape(room=StepRoom(256), step_s=0.0, row_s=1 / 2560), rate=load)
        in_order, shared = 1 + load / (2 * (1 - load)), 1 / (1 - load)
        assert 0.95 * in_order < found.latency_s.mean() < 1.05 * shared

    @pytest.mark.parametrize("load", [pytest.param(0.3, marks=pytest.mark.full), 0.7])
    def test_the_front_is_a_queue(self, load: float) -> None:
        """Mean wait of M/D/1 is `load / (2 (1 - load))` services (Pollaczek and Khinchine)."""
        found = self.run(shape(step_s=0.0, row_s=0.0, front_s=1.0), rate=load)
        assert found.latency_s.mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.12)

    @pytest.mark.parametrize("load", [pytest.param(0.3, marks=pytest.mark.full), 0.6])
    def test_a_front_whose_time_varies_is_a_longer_queue(self, load: float) -> None:
        """Mean wait of M/G/1 is `load * E[S^2] / (2 (1 - load))` for a mean service of 1 (Pollaczek and Khinchine)."""
        factors = tuple(np.random.default_rng(RNG_SEED).permutation(np.repeat((0.5, 5.0), (8000, 1000))).tolist())
        found = self.run(shape(step_s=0.0, row_s=0.0, front_s=1.0, front_factors=factors), rate=load, requests=9000)
        second_moment = np.mean(np.square(factors))
        assert found.latency_s.mean() == pytest.approx(1 + load * second_moment / (2 * (1 - load)), rel=0.12)

    def test_step_times_are_multiplied_by_their_factors_in_turn(self) -> None:
        factors = (0.5, 0.7, 1.8)
        scenario = Scenario(replicas=1, replica=shape(step_factors=factors), request=REQUEST, callers=1)
        found = simulate(scenario, np.zeros(61, np.int64)).latency_s[1:] / (1e-4 + 128e-5)
        assert any(found == pytest.approx(np.roll(np.tile(factors, 20), place)) for place in range(3))

    def test_a_caller_thinks_between_its_requests(self) -> None:
        scenario = Scenario(replicas=1, replica=shape(), request=REQUEST, callers=1, think_s=2.0)
        found = simulate(scenario, np.array([5, 5, 5]))
        assert np.diff(found.arrived_s) == pytest.approx(found.latency_s[:-1] + 2.0)

    def test_a_request_alone_takes_its_steps(self) -> None:
        scenario = Scenario(replicas=1, replica=shape(front_s=0.5), request=REQUEST, callers=1)
        found = simulate(scenario, np.array([5, 5]))
        assert found.latency_s == pytest.approx([0.5 + 1e-4 + 640e-5, 0.5 + 1e-4 + 128e-5])


class TestManyReplicas:
    shares = zipf_shares(600, 0.9)

    def run(self, **fields: object) -> Outcome:
        usual: dict = {"replicas": 10, "replica": shape(), "request": REQUEST, "rate": 300.0, "weight": 64}
        return simulate(Scenario(**usual | fields), drawn(self.shares, 2000), shares=self.shares)

    def test_hashing_makes_one_cache_of_all(self) -> None:
        hashed = self.run(balance_factor=0)
        assert hashed.hit_rate() == pytest.approx(expected_hit_rate(self.shares, 200), abs=0.03)
        assert not hashed.is_spilled.any()

    @pytest.mark.parametrize(
        "factors", [pytest.param((0, 400, 200, 120), marks=pytest.mark.full), (0, 200, 120)], ids=str
    )
    def test_a_tighter_bound_spills_more_and_finds_less(self, factors: tuple[int, ...]) -> None:
        found = [self.run(balance_factor=factor, rate=2000.0) for factor in factors]
        spilled = [each.is_spilled.mean() for each in found]
        assert sorted(spilled) == spilled
        assert spilled[-1] > 0.2
        assert found[-1].hit_rate() < found[0].hit_rate() - 0.05

    def test_the_same_seed_is_the_same_run(self) -> None:
        first, again, other = (self.run(**seed).latency_s.tolist() for seed in ({}, {}, {"seed": 1}))
        assert again == first
        assert other != first

    def test_queries_of_a_lost_replica_are_computed_again(self) -> None:
        loss = Loss(after_requests=1000, replica=4, detection_s=0.1)
        whole, broken = (self.run(rate=2500.0, balance_factor=300, loss=each) for each in (None, loss))
        failed = np.flatnonzero(np.isnan(broken.latency_s))
        assert 0 < len(failed) < 60
        assert (broken.replica[failed] == 4).all()
        assert failed.max() <= 1000
        assert 4 not in broken.replica[1001:]
        assert 4 in broken.replica[:1000]
        moved = np.flatnonzero(whole.replica[1001:1300] == 4) + 1001
        assert broken.cached[moved].mean() < whole.cached[moved].mean() - 0.1
        assert broken.hit_rate(0, 800) == whole.hit_rate(0, 800)

    def test_the_first_refusal_takes_a_lost_replica_off_the_ring(self) -> None:
        loss = Loss(after_requests=1000, replica=4, detection_s=1000.0)
        found = self.run(rate=0.0, callers=1, loss=loss)
        assert found.arrived_s[-1] < 1000, "no health check came before"
        assert 4 in found.replica[:1000]
        assert 4 not in found.replica[1001:]
        assert found.is_spilled[1001:].sum() <= 1, "only the refused one goes astray: its queries belong to others then"

    def test_a_replica_that_dies_in_the_last_step_answers_nothing(self) -> None:
        environment = simpy.Environment()
        replica = SimulatedReplica(environment, shape(step_s=1.0), REQUEST)
        answer = replica.serve(5)
        environment.run(until=0.5)
        replica.kill()
        environment.run()
        assert answer.value is None

    def test_a_returning_replica_is_empty_and_gets_its_queries_back(self) -> None:
        loss = Loss(after_requests=600, replica=4, detection_s=0.1, returns_s=0.4)
        found = self.run(rate=1000.0, loss=loss)
        own = found.replica == 4
        back = np.flatnonzero(own[600:]) + 600
        assert found.arrived_s[back[0]] > found.arrived_s[600] + 0.4
        assert found.cached[back[0]] == 0
        assert own[1200:].mean() == pytest.approx(own[:600].mean(), rel=0.4)

    def test_the_last_replica_lost_fails_everything_and_ends(self) -> None:
        found = self.run(replicas=1, loss=Loss(after_requests=1000))
        assert np.isnan(found.latency_s[1000:]).all()
        assert found.failed >= 1000

    @pytest.mark.parametrize("replicas", [0, 1001])
    def test_the_number_of_replicas_is_bounded(self, replicas: int) -> None:
        with pytest.raises(ValueError, match="1 to 1000 replicas"):
            self.run(replicas=replicas)


def test_zipf_shares_add_up_and_queries_follow_them() -> None:
    shares = zipf_shares(50, 1.0)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[9] == pytest.approx(10)
    counts = np.bincount(drawn(shares, 100_000), minlength=50) / 100_000
    assert counts == pytest.approx(shares, abs=0.006)


def test_che_at_its_ends() -> None:
    shares = zipf_shares(50, 1.0)
    assert expected_hit_rate(shares, 0) == 0
    assert expected_hit_rate(shares, 50) == 1
    assert expected_hit_rate(np.full(100, 0.01), 30) == pytest.approx(0.3)
