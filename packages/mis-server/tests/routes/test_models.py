"""`GET /v1/models`: OpenAI's shape."""

import dataclasses
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from mis_core.tasks.score.task import SCORE
from mis_core.tokenization import Tokenizer


def test_the_served_model_is_listed(http: httpx.Client) -> None:
    body = http.get("/v1/models").json()
    assert body["object"] == "list"
    (card,) = body["data"]
    created = card.pop("created")
    assert isinstance(created, int)
    assert card == {
        "id": "some/model",
        "object": "model",
        "owned_by": "mis",
        "root": "some/model",
        "parent": None,
        "max_model_len": 256,
        "tasks": ["score", "rerank", "decide", "complete", "chat"],
        "recipe": "generic",
        "parts": [],
    }


@pytest.mark.parametrize("path", ["some/model", "some%2Fmodel"])
def test_a_name_with_a_slash_is_found(http: httpx.Client, path: str) -> None:
    assert http.get(f"/v1/models/{path}").json() == http.get("/v1/models").json()["data"][0]


def test_another_name_is_not_found(http: httpx.Client) -> None:
    reply = http.get("/v1/models/other")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


def test_without_a_chat_template_nobody_can_chat(
    http: httpx.Client, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    card = http.get("/v1/models").json()["data"][0]
    assert card["tasks"] == ["score", "decide", "complete"]
    assert "recipe" not in card


def test_a_classifier_classifies(http: httpx.Client, pretended: Any) -> None:
    pretended.info = msgspec.structs.replace(pretended.info, head_labels=("bad", "good"))
    assert http.get("/v1/models").json()["data"][0]["tasks"] == ["score", "rerank", "classify"]
    assert http.get("/model_info").json()["is_generation"] is False


def test_a_task_that_the_model_does_not_have_is_refused(
    http: httpx.Client, pretended: Any, score_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mis_server.routes.score.SCORE", dataclasses.replace(SCORE, name="classify"))
    reply = http.post("/v1/score", json=score_body())
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "task_not_supported")
    assert "classification head" in reply.json()["error"]["message"]
    assert pretended.requests == []


def test_the_name_can_be_chosen(connect: Callable[..., httpx.Client]) -> None:
    http = connect(served_model_name="ranker")
    card = http.get("/v1/models").json()["data"][0]
    assert (card["id"], card["root"]) == ("ranker", "some/model")
    assert http.get("/v1/models/some/model").status_code == 404


def test_models_are_listed_while_the_engine_starts(http: httpx.Client, pretended: Any) -> None:
    pretended.ready, pretended.info = False, None
    card = http.get("/v1/models").json()["data"][0]
    assert card["max_model_len"] is None
    assert "recipe" not in card
