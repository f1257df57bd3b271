"""Probes: alive is not the same as ready."""

from typing import Any

import httpx


def test_health_answers_whatever_the_engine_does(http: httpx.Client, pretended: Any) -> None:
    assert http.get("/health").status_code == 200
    pretended.ready = False
    assert http.get("/health").status_code == 200


def test_ready_follows_the_engine(http: httpx.Client, pretended: Any) -> None:
    assert http.get("/ready").status_code == 200
    pretended.ready = False
    reply = http.get("/ready")
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "engine_unavailable"
    assert int(reply.headers["retry-after"]) > 0
    pretended.ready = True
    assert http.get("/ready").status_code == 200
