"""When a request must be answered: the operator's limit, or an earlier one that the client names."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from mis_core.errors import RequestError

HEADER = "x-request-timeout"
"""Seconds, a number above 0, counted from the arrival of the request's headers."""


@asynccontextmanager
async def deadline(request: Request, longest_s: float) -> AsyncIterator[None]:
    """Cancel the work inside when its time is over.

    Args:
        request: May name its own time in `HEADER`.
        longest_s: Time of requests that name none, and the most that one may name.

    Raises:
        RequestError: `deadline_exceeded`, or `invalid_request_timeout` if the header is no such number.
    """
    seconds = min(_named(request), longest_s)
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RequestError("deadline_exceeded", f"The request was not answered within {seconds:g} s.") from None


def _named(request: Request) -> float:
    given = request.headers.get(HEADER)
    if given is None:
        return math.inf
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise RequestError(
            "invalid_request_timeout", f"The header {HEADER} must be a number of seconds above 0.", HEADER
        )
    return seconds
