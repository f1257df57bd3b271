"""The way of every request with a body: its time runs, its body is read, it finds a place among what is under way."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request

from mis_server.edge.admission import Place
from mis_server.edge.bodies import read_json_body
from mis_server.edge.deadline import Patience, seconds_of
from mis_server.service import Service

Answer = TypeVar("Answer")


async def take_in(request: Request, service: Service, work: Callable[[bytes, Place], Awaitable[Answer]]) -> Answer:
    """Call `work` with the request's body and its place, until its time is over or its client gone.

    Raises:
        RequestError: `invalid_request_timeout`, `unsupported_media_type`, `request_timeout`, `queue_full` or
            `deadline_exceeded`; or what `work` raises.
        ClientDisconnect: nobody waits for the answer any more.
    """
    settings = service.settings
    seconds = seconds_of(request, settings.request_timeout)
    with Patience(request, seconds, settings.body_timeout) as patience:
        with service.admission.body():
            body = await read_json_body(request)
        patience.body_arrived()
        with service.admission.place() as place:
            return await work(body, place)
