"""The one loop: closed, open and both, in time that passes only as calls take it."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_fakes import Clock, FakeTarget
from mis_bench.measuring.loop import DueRequest, drive
from mis_bench.results.records import Sent
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import CallFailed
from mis_bench.traces import arrival_times
from mis_bench.workload import build_workload

WORKLOAD = build_workload("probe-5-2-3")


@pytest.fixture
def target(clock: Clock) -> FakeTarget:
    return FakeTarget(TargetSpec("fake", "fake"), clock, forgets=True)


def asked(target: FakeTarget, due: list[float | None]) -> Iterator[DueRequest]:
    for number, due_s in enumerate(due):
        workload = WORKLOAD.another(number)
        yield DueRequest(number, 2, 11, [target.prepare(workload)], due_s)


def driven(target: FakeTarget, requests: Iterator[DueRequest], **options: float | None) -> tuple[list[Sent], float]:
    given = {"max_concurrency": 1, "timeout_s": 60.0} | options
    return asyncio.run(drive(target, requests, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize("callers", [1, 3, 8])
def test_callers_of_a_closed_loop_wait_for_their_answers(target: FakeTarget, callers: int) -> None:
    sent, seconds = driven(target, asked(target, [None] * 24), max_concurrency=callers)
    assert target.most_at_once == callers
    assert [each.number for each in sent] == list(range(24))
    assert seconds == pytest.approx(24 / callers * 0.01)
    assert all(each.done_s - each.sent_s == pytest.approx(0.01) for each in sent)


def test_bodies_are_encoded_before_the_first_is_sent(target: FakeTarget) -> None:
    driven(target, asked(target, [None] * 20))
    assert target.events == ["prepare"] * 20 + ["call"] * 20


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rate=st.floats(20, 400), callers=st.integers(1, 4), seed=st.integers(0, 99))
def test_latency_counts_from_the_due_time_as_in_queueing_theory(
    target: FakeTarget, clock: Clock, rate: float, callers: int, seed: int
) -> None:
    """Lindley's recursion for several servers: a request waits for the first that is free."""
    target.under_way = 0
    times = arrival_times(f"{seed} 1", rate)
    due = [next(times) for _ in range(40)]
    sent, _ = driven(target, asked(target, list(due)), max_concurrency=callers)
    free = [0.0] * callers
    for each, arrival in zip(sent, due, strict=True):
        first = min(range(callers), key=lambda caller: free[caller])
        free[first] = max(free[first], arrival) + 0.01
        assert each.done_s == pytest.approx(free[first], abs=1e-6)
        assert each.sent_s >= arrival - 1e-9


def test_an_open_loop_sends_on_time_however_slow_the_answers(target: FakeTarget) -> None:
    target.seconds = lambda _: 5.0
    due = [0.1 * number for number in range(30)]
    sent, _ = driven(target, asked(target, list(due)), max_concurrency=None)
    assert [each.sent_s for each in sent] == pytest.approx(due)
    assert target.most_at_once == 30


def test_a_load_that_lasts_stops_sending_in_time(target: FakeTarget) -> None:
    sent, seconds = driven(target, asked(target, [None] * 10_000), max_concurrency=4, seconds=1.0)
    assert max(each.sent_s for each in sent) < 1
    assert seconds == pytest.approx(1.0, abs=0.02)
    assert len(sent) == pytest.approx(400, abs=8)


def test_a_late_answer_is_a_timeout_and_harms_no_other(target: FakeTarget) -> None:
    target.seconds = lambda workload: 9.0 if workload.query[0] == WORKLOAD.another(1).query[0] else 0.01
    sent, _ = driven(target, asked(target, [None] * 4), timeout_s=1.0)
    assert [each.error for each in sent] == [None, "timeout", None, None]
    assert sent[1].scores is None
    assert sent[1].done_s - sent[1].sent_s == pytest.approx(1.0)


def test_failures_are_named_by_code_and_a_refusal_is_never_sent(target: FakeTarget) -> None:
    def before(number: int, _: object) -> None:
        if number == 1:
            raise CallFailed("http_error", "500")

    target.before = before
    requests = list(asked(target, [None] * 3))
    requests.append(DueRequest(3, 2, 11, [], refusal=CallFailed("rejected", "texts")))
    sent, _ = driven(target, iter(requests))
    assert [each.error for each in sent] == [None, "http_error", None, "rejected"]
    assert len(target.sent) == 3


def test_parts_of_a_request_are_sent_in_turn_and_joined(target: FakeTarget) -> None:
    pieces = [build_workload(f"{name}-5-2-3") for name in ("a", "b", "c")]
    (sent,), _ = driven(target, iter([DueRequest(0, 6, 23, pieces)]), max_concurrency=4)
    assert target.most_at_once == 1
    assert sent.done_s == pytest.approx(0.03)
    np.testing.assert_array_equal(sent.scores, np.concatenate([target.scores(piece) for piece in pieces]))
    assert sent.stages_ms == pytest.approx({"device": 0.3})
