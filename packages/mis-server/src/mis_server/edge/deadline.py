"""How long a request is worked on: until its deadline, and while its client is there."""

import asyncio
import math
from types import TracebackType
from typing import Self

from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError
from mis_server.edge.protocol import CONNECTION_LOST

HEADER = "x-request-timeout"
"""Seconds, a number above 0, counted from the arrival of the request's headers."""


class Deadline:
    """Cancels the work inside `with` when the deadline passes, when the body is late, or when the client is gone.

    One timer serves both times; nesting two `asyncio.timeout` took a tenth of a small request's CPU time.
    """

    def __init__(self, request: Request, seconds: float, body_s: float) -> None:
        """Prepare.

        Args:
            request: Its scope has the extension `CONNECTION_LOST`; without it, nobody notices that the client is gone.
            seconds: For the whole request.
            body_s: Until `body_arrived` must have been called.
        """
        self._seconds = seconds
        self._body_s = body_s
        self._lost: asyncio.Future[None] | None = request.scope.get("extensions", {}).get(CONNECTION_LOST)
        self._has_body = False
        self._reason: RequestError | ClientDisconnect | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._ends = self._loop.time() + self._seconds
        if self._body_s < self._seconds:
            self._timer = self._loop.call_later(self._body_s, self._on_body_time)
        else:
            self._timer = self._loop.call_later(self._seconds, self._on_end)
        if self._lost is not None:
            self._lost.add_done_callback(self._on_lost)
        return self

    def body_arrived(self) -> None:
        """From now on only the deadline of the whole request counts."""
        self._has_body = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._lost is not None:
            self._lost.remove_done_callback(self._on_lost)
        task, self._task = self._task, None
        if task is not None and self._reason is not None:
            is_ours_alone = task.uncancel() == 0
            if kind is asyncio.CancelledError and is_ours_alone:
                raise self._reason from None

    def _on_body_time(self) -> None:
        if self._has_body:
            self._timer = self._loop.call_later(self._ends - self._loop.time(), self._on_end)
        else:
            self._cancel(RequestError("request_timeout", f"The body did not arrive within {self._body_s:g} s."))

    def _on_end(self) -> None:
        self._cancel(RequestError("deadline_exceeded", f"The request was not answered within {self._seconds:g} s."))

    def _on_lost(self, lost: asyncio.Future[None]) -> None:
        self._cancel(ClientDisconnect())

    def _cancel(self, reason: RequestError | ClientDisconnect) -> None:
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()


def requested_seconds(request: Request, longest_s: float) -> float:
    """Return the seconds that a request names in `HEADER`, or `longest_s` if it names none or more.

    Raises:
        RequestError: `invalid_request_timeout` if the header is not a number above 0.
    """
    try:
        seconds = float(request.headers.get(HEADER, "inf"))
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise RequestError(
            "invalid_request_timeout", f"The header {HEADER} must be a number of seconds above 0.", HEADER
        )
    return min(seconds, longest_s)
