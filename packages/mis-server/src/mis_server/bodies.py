"""Reading a request's body, and noticing that nobody waits for the reply any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError

_Result = TypeVar("_Result")


async def read_json_body(request: Request, timeout_s: float) -> bytes:
    """Return the bytes of a body that calls itself JSON.

    Raises:
        RequestError: its content type is another, or it did not arrive in time.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError("unsupported_media_type", "The content type must be application/json.")
    try:
        async with asyncio.timeout(timeout_s):
            return await request.body()
    except TimeoutError:
        raise RequestError("request_timeout", f"The body did not arrive within {timeout_s:g} s.") from None


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for work, but cancel it when the client has gone away. Call it after the body was read.

    Raises:
        ClientDisconnect: the client has gone away.
    """
    task = asyncio.current_task()
    assert task is not None

    def cancel(_: asyncio.Task[None]) -> None:
        task.cancel()

    leaving = asyncio.create_task(_disconnected(request))
    leaving.add_done_callback(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled() and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        leaving.remove_done_callback(cancel)
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
