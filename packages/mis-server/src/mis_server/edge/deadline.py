"""How long a request is worked on: until its deadline, and while its client is there."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError
from mis_server.edge.protocol import CONNECTION_LOST

HEADER = "x-request-timeout"
"""Seconds, a number above 0, counted from the arrival of the request's headers."""


@contextlib.asynccontextmanager
async def deadline(request: Request, seconds: float, body_s: float) -> AsyncIterator[Callable[[], None]]:
    """Cancel the work inside when the deadline passes, when the body is late, or when the client is gone.

    Args:
        request: Its scope has the extension `CONNECTION_LOST`; without it, nobody notices that the client is gone.
        seconds: For the whole request.
        body_s: For the body; whoever has it calls the function that `async with` gives.

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
