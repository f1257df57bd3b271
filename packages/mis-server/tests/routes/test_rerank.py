"""`POST /v1/rerank`: what a client gets for what it sends."""

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from mis_core.checkpoints import Sign, Signs

BODY: dict[str, Any] = {"query": "cats", "documents": ["A cat sleeps.", {"text": "It rains."}, "A cat sleeps."]}
ROUTES = ["/v1/rerank", "/v2/rerank", "/rerank"]


@pytest.fixture(autouse=True)
def qwen3(pretended: Any) -> None:
    pretended.info = msgspec.structs.replace(pretended.info, architecture="Qwen3ForCausalLM")


@pytest.mark.parametrize("route", ROUTES)
def test_reply_has_what_clients_of_cohere_and_jina_read(http: httpx.Client, route: str) -> None:
    reply = http.post(route, json=BODY | {"top_n": 9, "return_documents": True})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert set(body) == {"id", "object", "model", "recipe", "results", "errors", "usage", "meta"}
    assert body["id"] == f"rerank-{reply.headers['x-request-id']}"
    assert (body["object"], body["model"], body["errors"]) == ("rerank", "some/model", [])
    assert body["recipe"] == http.get("/v1/models").json()["data"][0]["recipe"] == "qwen3-reranker"
    assert sorted(each["index"] for each in body["results"]) == [0, 1, 2]
    scores = [each["relevance_score"] for each in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {each["index"]: each["document"]["text"] for each in body["results"]}[1] == "It rains."
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 80
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert body["meta"]["api_version"] == {"version": "2"}
    assert body["meta"]["billed_units"] == {"search_units": 1}
    assert body["meta"]["truncated"] == []
    assert "tokenize" in reply.headers["server-timing"]


def test_errors_of_single_documents_and_cut_ones_are_told(http: httpx.Client) -> None:
    documents = ["a", 7, "long " * 400]
    body = http.post("/v1/rerank", json=BODY | {"documents": documents, "on_error": "item"}).json()
    assert sorted(each["index"] for each in body["results"]) == [0, 2]
    (error,) = body["errors"]
    assert (error["index"], error["code"], error["param"]) == (1, "invalid_documents", "documents")
    assert body["meta"]["truncated"] == [2]
    assert all("document" not in each for each in body["results"])


def test_a_reranker_of_another_recipe_is_refused_and_scores(
    http: httpx.Client, pretended: Any, score_body: Any
) -> None:
    signs = Signs((Sign("README.md", "Releasing zeroentropy/zerank-2"),))
    pretended.info = msgspec.structs.replace(pretended.info, signs=signs)
    reply = http.post("/v1/rerank", json=BODY)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "task_not_supported")
    for said in ("README.md", "zerank-2", "--rerank-template", "qwen3-reranker, mxbai-rerank-v2, generic"):
        assert said in error["message"]
    card = http.get("/v1/models").json()["data"][0]
    assert card["tasks"] == ["score", "decide", "complete", "chat"]
    assert "recipe" not in card
    assert http.post("/v1/score", json=score_body()).status_code == 200


def test_the_operator_chooses_a_recipe_by_its_name(connect: Callable[..., httpx.Client], pretended: Any) -> None:
    signs = Signs((Sign("README.md", "Releasing zeroentropy/zerank-2"),))
    pretended.info = msgspec.structs.replace(pretended.info, signs=signs)
    http = connect(engine_options={"rerank_template": "mxbai-rerank-v2"})
    assert http.post("/v1/rerank", json=BODY).json()["recipe"] == "mxbai-rerank-v2"


def test_requests_are_counted_by_task(http: httpx.Client) -> None:
    http.post("/v1/rerank", json=BODY)
    assert 'task="rerank"' in http.get("/metrics").text
