"""Bodies of requests."""

from fastapi import Request
from starlette.requests import ClientDisconnect

from mis_core.errors import RequestError
from mis_server.edge.headers import header


async def read_json_body(request: Request) -> bytes:
    """Return the bytes of a body that calls itself JSON.

    Raises:
        RequestError: its content type is another.
        ClientDisconnect: the client has gone away.
    """
    media_type = header(request.scope, b"content-type").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError("unsupported_media_type", "The content type must be application/json.")
    encoding = header(request.scope, b"content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RequestError("unsupported_media_type", "Send the body as it is: Content-Encoding is not supported.")
    parts = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
