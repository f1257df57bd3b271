"""A request is logged and counted once, however it ends."""

import asyncio
import logging
from typing import Any

import pytest

from mis_server.edge.middleware import RequestIdMiddleware
from mis_server.telemetry.metrics import Metrics

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def handled(messages: list[dict[str, Any]], end: BaseException | None) -> tuple[list[dict[str, Any]], Metrics]:
    """Return what a client is sent by an application that sends messages and ends with an error."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(dict(message))
        if end is not None:
            raise end

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    sent: list[dict[str, Any]] = []
    metrics = Metrics()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "headers": [(b"x-request-id", b"mine")],
        "client": ("::1", 1),
    }
    asyncio.run(RequestIdMiddleware(app, metrics, log=True)(scope, receive, send))
    return sent, metrics


@pytest.mark.parametrize(
    ("messages", "end", "status"),
    [
        ([START, END], None, 200),
        ([], RuntimeError("planted"), 500),
        ([], asyncio.CancelledError(), 503),
        ([START, END], RuntimeError("planted"), 200),
        ([START], asyncio.CancelledError(), 200),
    ],
)
def test_every_end_is_one_reply_one_line_and_one_count(
    caplog: pytest.LogCaptureFixture, messages: list[dict[str, Any]], end: BaseException | None, status: int
) -> None:
    with caplog.at_level(logging.INFO, logger="mis_server.access"):
        sent, metrics = handled(messages, end)
    (start,) = [message for message in sent if message["type"] == "http.response.start"]
    assert start["status"] == status
    assert (b"x-request-id", b"mine") in start["headers"]
    (line,) = [record for record in caplog.records if record.name == "mis_server.access"]
    assert f" {status} " in line.getMessage()
    counted = [line for line in metrics.text().decode().splitlines() if 'handler="none"' in line and "_total{" in line]
    assert [(f'status="{status}"' in line, line.endswith(" 1.0")) for line in counted] == [(True, True)]
