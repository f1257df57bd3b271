"""What may wait is counted, and those who may not are told when to come back."""

import asyncio
import contextlib

import pytest

from mis_core.errors import RequestError
from mis_server.edge import admission
from mis_server.edge.admission import Admission, Permit, Siblings

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


def test_a_refused_request_returns_only_what_it_took() -> None:
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


class Sibling:
    """Requests of one body, each of so many tokens, which last until the event is set."""

    def __init__(self, queue: Admission, tokens: int) -> None:
        self.siblings = Siblings(queue)
        self.tokens = tokens
        self.attempts = self.most = 0
        self.queue = queue

    async def work(self, permit: Permit) -> str:
        self.attempts += 1
        await asyncio.sleep(0)  # where its texts are tokenised
        permit.allocate(self.tokens)
        self.most = max(self.most, self.queue.tokens)
        for _ in range(5):
            await asyncio.sleep(0)
        return "answered"

    async def all(self, count: int) -> list[str]:
        each = [self.siblings.admit(self.work) for _ in range(count)]
        said = await asyncio.wait_for(asyncio.gather(*each, return_exceptions=True), 60)
        assert all(isinstance(one, str) or (isinstance(one, RequestError) and one.code == "queue_full") for one in said)
        return [one if isinstance(one, str) else "refused" for one in said]


@pytest.mark.parametrize(("requests", "tokens"), [(1, 1), (3, 1), (100, 40), (100, 5000)])
def test_siblings_are_all_answered_where_nobody_else_is(requests: int, tokens: int) -> None:
    queue = Admission(max_requests=requests, max_tokens=100, max_sequences=10)
    sibling = Sibling(queue, tokens)
    assert asyncio.run(sibling.all(16)) == ["answered"] * 16
    assert sibling.most <= max(100, tokens)
    assert sibling.attempts <= 2 * 16  # each waits for another to end, and only one tries again then
    assert (queue.requests, queue.tokens) == (0, 0)


def test_siblings_are_refused_where_others_leave_no_room() -> None:
    queue = Admission(max_requests=100, max_tokens=100, max_sequences=10)
    with queue.permit() as other:
        other.allocate(50)
        assert asyncio.run(Sibling(queue, 30).all(16)) == ["refused"] * 16
        assert asyncio.run(Sibling(queue, 25).all(16)) == ["answered"] * 16  # one after the other
    full = Admission(max_requests=1, max_tokens=100, max_sequences=10)
    with full.permit():
        assert asyncio.run(Sibling(full, 1).all(16)) == ["refused"] * 16


def test_a_failed_or_cancelled_sibling_lets_the_next_try() -> None:
    queue = Admission(max_requests=1, max_tokens=100, max_sequences=10)
    siblings = Siblings(queue)

    async def fail(permit: Permit) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def hang(permit: Permit) -> None:
        await asyncio.sleep(60)

    async def run() -> list[type]:
        first = asyncio.create_task(siblings.admit(hang))
        others = [asyncio.create_task(siblings.admit(fail)) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        others[0].cancel()
        first.cancel()
        said = await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 60)
        return [type(each) for each in said]

    assert asyncio.run(run()) == [asyncio.CancelledError, asyncio.CancelledError, ZeroDivisionError, ZeroDivisionError]
    assert queue.requests == 0
