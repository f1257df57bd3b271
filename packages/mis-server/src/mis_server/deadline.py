"""When a request must be answered: the operator's limit, or an earlier one that the client names."""

import asyncio
import math
from types import TracebackType

from fastapi import Request

from mis_core.errors import RequestError

HEADER = "x-request-timeout"
"""Seconds, a number above 0, counted from the arrival of the request's headers."""


class deadline:  # noqa: N801 - used as a function
    """Cancels the work inside `async with` when its time is over."""

    def __init__(self, request: Request, longest_s: float) -> None:
        """Read the time.

        Args:
            request: May name its own time in `HEADER`.
            longest_s: Time of requests that name none, and the most that one may name.

        Raises:
            RequestError: `invalid_request_timeout` if the header is no such number.
        """
        self._seconds = min(_named(request), longest_s)
        self._timeout = asyncio.timeout(self._seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            message = f"The request was not answered within {self._seconds:g} s."
            raise RequestError("deadline_exceeded", message) from None


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
