"""How much may be under way, and for how long.

What is counted are bodies that arrive, then requests, their tokens and answers, until the reply is made. A request is
worked on until its deadline, and while its client is there.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError
from mis_server.edge.protocol import CONNECTION_LOST

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds, a number above 0, counted from the arrival of the request's headers."""

_LONGEST_WAIT_S = 60  # the longest wait that every version of the openai client obeys
_BODIES = 4  # bodies that may be arriving, for each request that may be under way
_MEMORY_S = 30.0  # how far the estimate of tokens per second looks back

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Claim:
    """What requests count as: each as half of all at most."""

    tokens: int = 0
    sequences: int = 0

    def __add__(self, other: "_Claim") -> "_Claim":
        return _Claim(self.tokens + other.tokens, self.sequences + other.sequences)

    def __sub__(self, other: "_Claim") -> "_Claim":
        return _Claim(self.tokens - other.tokens, self.sequences - other.sequences)


class Permit:
    """Lets one request be under way, inside `with Admission.permit()`."""

    def __init__(self, admission: "Admission") -> None:
        self.tokens = 0
        self.sequences = 0
        self.claim = _Claim()
        self._admission = admission

    def allocate(self, tokens: int, sequences: int = 0) -> None:
        """Claim room for what a request computes, once it is known; leaving `with` frees it.

        Each may have half of what the others leave, as with bodies (`BodyBytes`), and one that is alone and larger
        counts as half of all: however many large requests are under way, there is room for small ones.

        Args:
            tokens: The most tokens that are computed, those to be generated included.
            sequences: Answers that are generated, or drawn several to a prompt.

        Raises:
            RequestError: `queue_full`.
        """
        admission, claimed = self._admission, self._admission.claimed
        if admission.tokens and 2 * tokens > admission.max_tokens - claimed.tokens:
            raise RequestError("queue_full", f"{admission.tokens} tokens are under way; try again later.")
        if sequences and admission.sequences and 2 * sequences > admission.max_sequences - claimed.sequences:
            raise RequestError("queue_full", f"{admission.sequences} sequences are under way; try again later.")
        self.tokens, self.sequences = tokens, sequences
        self.claim = _Claim(min(tokens, admission.max_tokens // 2), min(sequences, admission.max_sequences // 2))
        admission.tokens += tokens
        admission.sequences += sequences
        admission.claimed += self.claim


class Admission:
    """Counts what is under way. A request that is alone is always admitted: its own limits are checked elsewhere."""

    def __init__(self, max_requests: int, max_tokens: int, max_sequences: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.bodies = 0
        self.requests = 0
        self.tokens = 0
        self.sequences = 0
        self.claimed = _Claim()
        self._rate = 0.0  # tokens answered per second, smoothed
        self._last_answer = time.monotonic()

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Surround the reading of a body, which holds no permit: a slow client keeps nobody out.

        Raises:
            RequestError: on entering; `queue_full` if no request is admitted now, or too many bodies are arriving.
        """
        self.check()
        if self.bodies >= _BODIES * self.max_requests:
            raise RequestError("queue_full", f"{self.bodies} request bodies are arriving; try again later.")
        self.bodies += 1
        try:
            yield
        finally:
            self.bodies -= 1

    def check(self) -> None:
        """Refuse if no further request may be under way.

        Raises:
            RequestError: `queue_full`.
        """
        if self.requests >= self.max_requests:
            raise RequestError("queue_full", f"{self.requests} requests are under way; try again later.")

    @contextlib.contextmanager
    def permit(self) -> Iterator[Permit]:
        """Give a permit, to be held from the arrival of the body until the reply is made.

        Raises:
            RequestError: on entering; `queue_full`.
        """
        self.check()
        self.requests += 1
        permit = Permit(self)
        try:
            yield permit
            self._answered(permit.tokens)
        finally:
            self.requests -= 1
            self.tokens -= permit.tokens
            self.sequences -= permit.sequences
            self.claimed -= permit.claim

    def retry_after_s(self) -> int:
        """Estimate in how many seconds half of what is under way will be answered, from 1 to 60."""
        if not self._rate:
            return 1
        return max(1, min(_LONGEST_WAIT_S, math.ceil(self.tokens / 2 / self._rate)))

    def _answered(self, tokens: int) -> None:
        """Update the estimate of tokens per second with a reply."""
        now = time.monotonic()
        elapsed = max(now - self._last_answer, 1e-3)
        keep = math.exp(-elapsed / _MEMORY_S)
        self._rate = keep * self._rate + (1 - keep) * tokens / elapsed
        self._last_answer = now


class Siblings:
    """Admits the requests that one body makes, each by itself; one that finds no room waits for its siblings to end.

    So only what others ask can keep one out, and a body that is alone is answered whatever the limits.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def admit(self, work: Callable[[Permit], Awaitable[Result]]) -> Result:
        """Do work with a permit; do it again if there was no room for it and a sibling has ended since.

        Raises:
            RequestError: `queue_full`, when no sibling is under way; or what the work raises.
        """
        try:
            while True:
                try:
                    return await self._attempt(work)
                except RequestError as error:
                    if error.code != "queue_full" or not self._under_way:
                        raise
                self._waiting.append(asyncio.get_running_loop().create_future())
                await self._waiting[-1]
        finally:
            self._wake()

    async def _attempt(self, work: Callable[[Permit], Awaitable[Result]]) -> Result:
        with self._admission.permit() as permit:
            self._under_way += 1
            try:
                return await work(permit)
            finally:
                self._under_way -= 1

    def _wake(self) -> None:
        """Let the one that has waited longest try again: only one, for each attempt may tokenise long texts."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # else it was cancelled
                waiting.set_result(None)
                return


@contextlib.asynccontextmanager
async def deadline(request: Request, seconds: float, body_s: float) -> AsyncIterator[Callable[[], None]]:
    """Cancel the work inside when the deadline passes, when the body is late, or when the client is gone.

    Args:
        request: Its scope has the extension `CONNECTION_LOST`; without it, nobody notices that the client is gone.
        seconds: For the whole request.
        body_s: For the body; call the yielded function once it has arrived.

    Raises:
        RequestError: `deadline_exceeded` or `request_timeout`.
        ClientDisconnect: the client is gone.
    """
    now = asyncio.get_running_loop().time()
    lost: asyncio.Future[None] | None = request.scope.get("extensions", {}).get(CONNECTION_LOST)
    late = "request_timeout", f"The body did not arrive within {body_s:g} s."
    passed = "deadline_exceeded", f"The request was not answered within {seconds:g} s."
    reason: tuple[str, str] | None = late if body_s < seconds else passed  # None: the client is gone
    timeout = asyncio.timeout_at(now + min(body_s, seconds))

    def change(when: float, why: tuple[str, str] | None) -> None:
        nonlocal reason
        with contextlib.suppress(RuntimeError):  # it has ended already, and the first reason counts
            timeout.reschedule(when)
            reason = why

    def on_lost(lost: asyncio.Future[None]) -> None:
        change(now, None)

    def body_arrived() -> None:
        if lost is None or not lost.done():
            change(now + seconds, passed)

    try:
        async with timeout:
            if lost is not None:
                lost.add_done_callback(on_lost)
            try:
                yield body_arrived
            finally:
                if lost is not None:
                    lost.remove_done_callback(on_lost)
    except TimeoutError:
        if timeout.expired():
            raise (ClientDisconnect() if reason is None else RequestError(*reason)) from None
        raise


def requested_seconds(request: Request, longest_s: float) -> float:
    """Return the seconds that a request names in `TIMEOUT_HEADER`, or `longest_s` if it names none or more.

    Raises:
        RequestError: `invalid_request_timeout` if the header is not a number above 0.
    """
    try:
        seconds = float(request.headers.get(TIMEOUT_HEADER, "inf"))
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise RequestError(
            "invalid_request_timeout",
            f"The header {TIMEOUT_HEADER} must be a number of seconds above 0.",
            TIMEOUT_HEADER,
        )
    return min(seconds, longest_s)
