"""How much work may wait: bodies on their way, then requests and tokens from the arrival of the body to the reply."""

import contextlib
import math
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from mis_core.errors import RequestError

_LONGEST_WAIT_S = 60  # the longest wait that every version of the openai client obeys
_BODIES = 4  # times as many bodies may be on their way as requests may be under way
_MEMORY_S = 30.0  # how far the estimate of tokens per second looks back


class Place:
    """One request's share of what may wait, held inside `with`."""

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.tokens = 0

    def __enter__(self) -> Self:
        admission = self._admission
        admission.check()
        admission.requests += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        admission = self._admission
        if error is None:
            admission.answered(self.tokens)
        admission.requests -= 1
        admission.tokens -= self.tokens

    def take(self, tokens: int) -> None:
        """Claim room for a request's tokens, once they are known.

        Raises:
            RequestError: `queue_full`.
        """
        admission = self._admission
        if admission.tokens and admission.tokens + tokens > admission.max_tokens:
            raise RequestError("queue_full", f"{admission.tokens} tokens are under way; try again later.")
        self.tokens = tokens
        admission.tokens += tokens


class Admission:
    """Counts what is under way. A request that is alone is always let in: its own limits are checked elsewhere."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.bodies = 0
        self.requests = 0
        self.tokens = 0
        self._rate = 0.0  # tokens answered per second, smoothed
        self._last_answer = time.monotonic()

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Surround the reading of a body: a slow one keeps no request out that is there.

        Raises:
            RequestError: on entering; `queue_full` if no request is let in now, or too many bodies are on their way.
        """
        self.check()
        if self.bodies >= _BODIES * self.max_requests:
            raise RequestError("queue_full", f"{self.bodies} bodies are on their way; try again later.")
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

    def place(self) -> Place:
        """Return a place to hold from the arrival of a body until the reply is made.

        Raises:
            RequestError: on entering; `queue_full`.
        """
        return Place(self)

    def retry_after_s(self) -> int:
        """Return after how many seconds half of what is under way should be answered, from 1 to 60."""
        if not self._rate:
            return 1
        return max(1, min(_LONGEST_WAIT_S, math.ceil(self.tokens / 2 / self._rate)))

    def answered(self, tokens: int) -> None:
        """Take note of a reply: how many tokens a second are answered."""
        now = time.monotonic()
        elapsed = max(now - self._last_answer, 1e-3)
        keep = math.exp(-elapsed / _MEMORY_S)
        self._rate = keep * self._rate + (1 - keep) * tokens / elapsed
        self._last_answer = now
