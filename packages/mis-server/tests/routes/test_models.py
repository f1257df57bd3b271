"""`GET /v1/models`: OpenAI's shape."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest


def test_the_served_model_is_listed(http: httpx.Client) -> None:
    body = http.get("/v1/models").json()
    assert body["object"] == "list"
    (card,) = body["data"]
    created = card.pop("created")
    assert isinstance(created, int)
    assert card == {"id": "some/model", "object": "model", "owned_by": "mis", "max_model_len": 256}


@pytest.mark.parametrize("path", ["some/model", "some%2Fmodel"])
def test_a_name_with_a_slash_is_found(http: httpx.Client, path: str) -> None:
    assert http.get(f"/v1/models/{path}").json() == http.get("/v1/models").json()["data"][0]


def test_another_name_is_not_found(http: httpx.Client) -> None:
    reply = http.get("/v1/models/other")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


def test_the_name_can_be_chosen(connect: Callable[..., httpx.Client]) -> None:
    http = connect(served_model_name="ranker")
    assert http.get("/v1/models").json()["data"][0]["id"] == "ranker"
    assert http.get("/v1/models/some/model").status_code == 404


def test_models_are_listed_while_the_engine_starts(http: httpx.Client, pretended: Any) -> None:
    pretended.ready, pretended.info = False, None
    assert http.get("/v1/models").json()["data"][0]["max_model_len"] is None
