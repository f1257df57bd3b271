"""What may wait is counted, and those who may not are told when to come back."""

import contextlib

import pytest

from mis_core.errors import RequestError
from mis_server.edge import admission
from mis_server.edge.admission import Admission


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, in seconds; tests set its one element."""
    clock = [100.0]
    monkeypatch.setattr(admission.time, "monotonic", lambda: clock[0])
    return clock


def test_requests_are_counted_until_they_end_however_they_end() -> None:
    queue = Admission(max_requests=2, max_tokens=100)
    with queue.place():
        with queue.place(), pytest.raises(RequestError) as caught, queue.place():
            pass
        assert caught.value.code == "queue_full"
        with pytest.raises(ZeroDivisionError), queue.place():
            raise ZeroDivisionError
    with queue.place(), queue.place():
        assert queue.requests == 2
    assert queue.requests == 0


def test_bodies_on_their_way_take_no_place() -> None:
    queue = Admission(max_requests=1, max_tokens=100)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(queue.body())
        with queue.place():  # one that is there
            assert queue.requests == 1
        with pytest.raises(RequestError, match="4 bodies") as caught, queue.body():
            pass
        assert caught.value.code == "queue_full"
    assert queue.bodies == 0
    with queue.place(), pytest.raises(RequestError, match="1 requests"), queue.body():
        pass


def test_tokens_are_counted_once_they_are_known() -> None:
    queue = Admission(max_requests=10, max_tokens=100)
    with queue.place() as first, queue.place() as second:
        first.take(60)
        with pytest.raises(RequestError) as caught:
            second.take(41)
        assert caught.value.code == "queue_full"
        second.take(40)
        assert queue.tokens == 100
    assert queue.tokens == 0


def test_a_refused_request_gives_nothing_back_that_it_did_not_take() -> None:
    queue = Admission(max_requests=10, max_tokens=100)
    with queue.place() as first:
        first.take(60)
        with pytest.raises(RequestError), queue.place() as second:
            second.take(50)
        assert (queue.requests, queue.tokens) == (1, 60)


def test_a_request_that_is_alone_is_let_in_whatever_its_size() -> None:
    queue = Admission(max_requests=10, max_tokens=100)
    with queue.place() as place:
        place.take(5000)
        with queue.place() as other, pytest.raises(RequestError):
            other.take(1)


def test_the_wait_follows_the_backlog_and_the_rate(now: list[float]) -> None:
    queue = Admission(max_requests=1000, max_tokens=10**9)
    assert queue.retry_after_s() == 1  # nothing known
    for _ in range(300):  # 1000 tokens a second, for a while
        with queue.place() as place:
            place.take(1000)
            now[0] += 1
    with queue.place() as place:
        place.take(20_000)
        assert queue.retry_after_s() == pytest.approx(10, abs=1)
        with queue.place() as more:
            more.take(10**8)
            assert queue.retry_after_s() == 60
    assert queue.retry_after_s() == 1


def test_a_burst_of_answers_is_no_rate(now: list[float]) -> None:
    queue = Admission(max_requests=1000, max_tokens=10**9)
    now[0] += 10
    places = [queue.place() for _ in range(10)]
    for place in places:
        place.__enter__().take(1000)
    for place in places:  # all at once after ten seconds: 1000 tokens a second, not millions
        place.__exit__(None, None, None)
    with queue.place() as place:
        place.take(100_000)
        assert queue.retry_after_s() >= 10
