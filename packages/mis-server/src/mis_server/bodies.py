"""Reading a request's body, and noticing that nobody waits for the reply any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError
from mis_server.protocol import CONNECTION_LOST

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
    """Wait for work, but cancel it when the client has gone away.

    Raises:
        ClientDisconnect: the client has gone away.
    """
    task = asyncio.current_task()
    assert task is not None
    connection_lost: asyncio.Future[None] | None = request.scope.get("extensions", {}).get(CONNECTION_LOST)
    if connection_lost is None:  # another server, which does not say so without a task for each request
        return await work

    def cancel(_: asyncio.Future[None]) -> None:
        task.cancel()

    connection_lost.add_done_callback(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if connection_lost.done() and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        connection_lost.remove_done_callback(cancel)
