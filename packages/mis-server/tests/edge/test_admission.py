"""What may wait is counted, and those who may not are told when to come back."""

import contextlib

import pytest

from mis_core.errors import RequestError
from mis_server.edge import admission
from mis_server.edge.admission import Admission

pytestmark = pytest.mark.quick


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, in seconds; tests set its one element."""
    clock = [100.0]
    monkeypatch.setattr(admission.time, "monotonic", lambda: clock[0])
    return clock


def test_requests_are_counted_until_they_end_however_they_end() -> None:
    queue = Admission(max_requests=2, max_tokens=100, max_sequences=10)
    with queue.permit():
        with queue.permit(), pytest.raises(RequestError) as caught, queue.permit():
            pass
        assert caught.value.code == "queue_full"
        with pytest.raises(ZeroDivisionError), queue.permit():
            raise ZeroDivisionError
    with queue.permit(), queue.permit():
        assert queue.requests == 2
    assert queue.requests == 0


def test_arriving_bodies_hold_no_permit() -> None:
    queue = Admission(max_requests=1, max_tokens=100, max_sequences=10)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(queue.body())
        with queue.permit():  # one that is there
            assert queue.requests == 1
        with pytest.raises(RequestError, match="4 request bodies") as caught, queue.body():
            pass
        assert caught.value.code == "queue_full"
    assert queue.bodies == 0
    with queue.permit(), pytest.raises(RequestError, match="1 requests"), queue.body():
        pass


def test_tokens_are_counted_once_they_are_known() -> None:
    queue = Admission(max_requests=10, max_tokens=100, max_sequences=10)
    with queue.permit() as first, queue.permit() as second:
        first.allocate(40)
        with pytest.raises(RequestError) as caught:
            second.allocate(31)
        assert caught.value.code == "queue_full"
        second.allocate(30)
        assert queue.tokens == 70
    assert queue.tokens == 0


def test_large_requests_leave_room_for_small_ones() -> None:
    queue = Admission(max_requests=100, max_tokens=1000, max_sequences=64)
    with contextlib.ExitStack() as stack:
        for _ in range(50):  # the largest that are admitted, one after the other
            permit = stack.enter_context(queue.permit())
            for size in (200, *range(16, 2, -1)):
                with contextlib.suppress(RequestError):
                    permit.allocate(10 * size, size)
                    break
        stack.enter_context(queue.permit()).allocate(2, 1)
        assert queue.claimed.tokens < queue.max_tokens
        assert queue.claimed.sequences < queue.max_sequences


def test_sequences_are_counted_beside_tokens() -> None:
    queue = Admission(max_requests=10, max_tokens=100, max_sequences=10)
    with queue.permit() as first, queue.permit() as second, queue.permit() as third:
        first.allocate(1, 11)  # it is alone
        with pytest.raises(RequestError, match="11 sequences are under way") as caught:
            second.allocate(1, 3)
        assert caught.value.code == "queue_full"
        assert (queue.tokens, queue.sequences) == (1, 11)
        third.allocate(9)  # scores write nothing
    assert (queue.tokens, queue.sequences) == (0, 0)
    with queue.permit() as first, queue.permit() as second:
        first.allocate(1, 4)
        second.allocate(1, 3)
        assert queue.sequences == 7


def test_a_refused_request_gives_nothing_back_that_it_did_not_take() -> None:
    queue = Admission(max_requests=10, max_tokens=100, max_sequences=10)
    with queue.permit() as first:
        first.allocate(40)
        with pytest.raises(RequestError), queue.permit() as second:
            second.allocate(50)
        assert (queue.requests, queue.tokens) == (1, 40)


def test_a_request_that_is_alone_is_let_in_whatever_its_size() -> None:
    queue = Admission(max_requests=10, max_tokens=100, max_sequences=10)
    with queue.permit() as permit:
        permit.allocate(5000)
        with queue.permit() as other:
            with pytest.raises(RequestError):
                other.allocate(26)
            other.allocate(25)


def test_the_wait_follows_the_backlog_and_the_rate(now: list[float]) -> None:
    queue = Admission(max_requests=1000, max_tokens=10**9, max_sequences=10)
    assert queue.retry_after_s() == 1  # nothing known
    for _ in range(300):  # 1000 tokens a second, for a while
        with queue.permit() as permit:
            permit.allocate(1000)
            now[0] += 1
    with queue.permit() as permit:
        permit.allocate(20_000)
        assert queue.retry_after_s() == pytest.approx(10, abs=1)
        with queue.permit() as more:
            more.allocate(10**8)
            assert queue.retry_after_s() == 60
    assert queue.retry_after_s() == 1


def test_a_burst_of_answers_is_no_rate(now: list[float]) -> None:
    queue = Admission(max_requests=1000, max_tokens=10**9, max_sequences=10)
    now[0] += 10
    permits = [queue.permit() for _ in range(10)]
    for permit in permits:
        permit.__enter__().allocate(1000)
    for permit in permits:  # all at once after ten seconds: 1000 tokens a second, not millions
        permit.__exit__(None, None, None)
    with queue.permit() as permit:
        permit.allocate(100_000)
        assert queue.retry_after_s() >= 10
