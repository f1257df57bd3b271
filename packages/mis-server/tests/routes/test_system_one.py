"""`POST /v1/systemone`: what its clients get for what they send, and errors as they read them."""

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from mis_core import Engine
from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.wire import Ready
from mis_server.schemas.system_one import ONE_STATE_PATHS
from mis_testing.server import RunningServer

Connect = Callable[..., httpx.Client]

NOUL: Any = {"type": "noul", "instructions": "Is it about animals?", "criteria": {"true": {"any": ["cats", "dogs"]}}}
CHOICE: Any = {"type": "choice", "instructions": ["Which?"], "criteria": {"cat": "a pet", "환불": None, "🙂": {"a": 1}}}
SCORE: Any = {"type": "score", "instructions": "How wet?", "criteria": ["dry", {"label": "wet"}]}
QUESTIONS: Any = {"a n": NOUL, "c.1": CHOICE, "질문": SCORE}
BODY: Any = {"model": "jev-latest", "state": {"text": "A cat."}, "questions": QUESTIONS}


@pytest.fixture(autouse=True)
def roomy(pretended: Any) -> None:
    pretended.info = Ready(vocab_size=1024, context_length=4096, created=1_763_712_000)


@pytest.mark.parametrize("path", ONE_STATE_PATHS)
def test_a_reply_has_the_fields_of_the_protocol(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json=BODY)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert set(body) == {"model", "answers", "usage"}
    assert body["model"] == "some/model"
    assert list(body["answers"]) == list(QUESTIONS)
    noul, choice, score = body["answers"].values()
    assert set(noul) == {"type", "noul", "x_label_mass"}
    assert set(choice) == {"type", "choice", "probabilities", "confidence", "x_label_mass"}
    assert list(choice["probabilities"]) == ["cat", "환불", "🙂"]
    assert set(score) == {"type", "score", "legend", "probabilities", "confidence", "x_label_mass"}
    assert score["legend"] == {"0": "dry", "1": {"label": "wet"}}
    assert {name: type(value) for name, value in body["usage"].items()} == {
        "input_tokens": int,
        "output_tokens": int,
        "x_cached_tokens": int,
    }
    assert "tokenize;dur=" in reply.headers["server-timing"]
    assert reply.headers["x-typesafe-request-id"] == reply.headers["x-request-id"]


def test_extensions_are_there_where_they_are_asked_for(http: httpx.Client) -> None:
    questions = QUESTIONS | {"bad": {"type": "noul"}}
    body = http.post("/v1/systemone", json=BODY | {"questions": questions, "x_on_error": "item"}).json()
    message = 'questions["bad"] needs instructions, or criteria for true or false.'
    assert body["x_errors"] == {"bad": {"code": "invalid_questions", "message": message}}
    assert list(body["answers"]) == list(QUESTIONS)
    body = http.post("/v1/systemone", json=BODY | {"x_abstain_below": 1}).json()
    assert body["x_abstained"] == list(QUESTIONS)


def test_names_of_the_model(connect: Connect) -> None:
    http = connect(model_alias=("mine", "typesafe/jev-latest"))

    def ask(path: str, name: str, **body: Any) -> int:
        return http.post(path, json=body | {"model": name}).status_code

    decision = {"input": "A cat.", "questions": [{"type": "predicate", "instructions": "It is wet."}]}
    names = ["some/model", "mine", "typesafe/jev-latest", "jev-latest", "gpt-6-luna", "other"]
    assert [ask("/v1/systemone", name, **BODY | {"model": name}) for name in names] == [200, 200, 200, 200, 404, 404]
    assert [ask("/v1/decisions", name, **decision) for name in names] == [200, 200, 200, 404, 200, 404]
    assert [ask("/tokenize", name, prompt="a") for name in names] == [200, 200, 200, 404, 404, 404]
    assert http.post("/v1/systemone", json=BODY | {"model": "mine"}).json()["model"] == "some/model"
    listed = http.get("/v1/models").json()
    assert [card["id"] for card in listed["data"]] == names[:3]
    assert {card["root"] for card in listed["data"]} == {"some/model"}
    assert [each["name"] for each in listed["models"]] == names[:4]
    assert {each["release_date"] for each in listed["models"]} == {"2025-11-21"}
    assert http.get("/v1/models/mine").json()["id"] == "mine"
    assert "x-typesafe-request-id" in http.get("/v1/models").headers


@pytest.mark.parametrize(
    ("changes", "loc", "kind"),
    [
        ({"state": None}, ["state"], "missing_state"),
        ({"questions": {}}, ["questions"], "empty_questions"),
        ({"questions": {'a "b".c': {"type": "boolean"}}}, ["questions", 'a "b".c', "type"], "invalid_questions"),
        (
            {"questions": {"q": {"type": "score", "criteria": ["a", 5]}}},
            ["questions", "q", "criteria", 1],
            "invalid_questions",
        ),
        ({"x_choice_order": "any"}, ["x_choice_order"], "invalid_x_choice_order"),
        ({"assets": {"a": {}}}, ["assets"], "unsupported_parameter"),
    ],
)
def test_what_is_wrong_with_a_body_is_422_and_says_where(
    http: httpx.Client, pretended: Any, changes: Any, loc: list[str | int], kind: str
) -> None:
    reply = http.post("/v1/systemone", json=BODY | changes)
    assert reply.status_code == 422
    (fault,) = reply.json()["detail"]
    assert (fault["loc"], fault["type"]) == (["body", *loc], kind)
    assert fault["msg"]
    assert pretended.requests == []


def test_a_body_that_is_no_json(http: httpx.Client) -> None:
    reply = http.post("/v1/systemone", content=b"{", headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["body"])
    reply = http.post("/v1/systemone", content=b"{}", headers={"content-type": "multipart/form-data"})
    assert (reply.status_code, reply.json()["detail"]["error_type"]) == (415, "api_usage_error")


@pytest.mark.parametrize("name", ['["\\q"]', '["a\nb"]', "a.b", "[", '["', ""])
def test_names_that_look_like_paths_are_told(http: httpx.Client, name: str) -> None:
    reply = http.post("/v1/systemone", json=BODY | {"questions": {"q": NOUL | {name: 1}}})
    assert (reply.status_code, reply.json()["detail"][0]["type"]) == (422, "unknown_parameter")


def test_a_compressed_request_is_counted_by_its_route(http: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert (
        http.post("/v1/systemone", content=gzip.compress(json.dumps(BODY).encode()), headers=headers).status_code == 200
    )
    assert 'handler="/v1/systemone"' in http.get("/metrics").text


def test_other_errors_have_a_type(http: httpx.Client, connect: Connect, pretended: Any) -> None:
    def detail(reply: httpx.Response) -> tuple[int, str]:
        assert reply.headers["x-typesafe-request-id"]
        found = reply.json()["detail"]
        assert set(found) == {"error_type", "message", "code"}
        return reply.status_code, found["error_type"]

    assert detail(http.post("/v1/systemone", json=BODY | {"model": "other"})) == (404, "not_found")
    assert detail(http.get("/v1/systemone")) == (405, "api_usage_error")
    locked = connect(api_key="k")
    assert detail(locked.post("/v1/systemone", json=BODY)) == (401, "authentication_error")
    wrong = {"authorization": "Bearer no"}
    assert detail(locked.post("/v1/systemone", json=BODY, headers=wrong)) == (401, "authentication_error")
    right = {"authorization": "Bearer k"}
    assert locked.post("/v1/systemone", json=BODY, headers=right).status_code == 200
    pretended.error = RequestError("queue_full", "Too much is under way.")
    busy = http.post("/v1/systemone", json=BODY)
    assert detail(busy) == (429, "rate_limit_error")
    assert int(busy.headers["retry-after"]) > 0
    assert detail(connect(max_body_bytes=10).post("/v1/systemone", json=BODY)) == (413, "api_usage_error")
    pretended.error = EngineUnavailable("dead")
    down = http.post("/v1/systemone", json=BODY)
    assert detail(down) == (503, "server_error")
    assert int(down.headers["retry-after"]) > 0
    pretended.error = ZeroDivisionError("a fault")
    assert detail(http.post("/v1/systemone", json=BODY)) == (500, "server_error")


def test_a_classifier_decides_nothing(http: httpx.Client, pretended: Any) -> None:
    pretended.info = Ready(vocab_size=1024, context_length=4096, head_labels=("bad", "good"))
    reply = http.post("/v1/systemone", json=BODY)
    assert (reply.status_code, reply.json()["detail"]["error_type"]) == (400, "api_usage_error")
    assert http.get("/v1/models").json()["models"] == []


def test_http_and_python_answer_alike(server: RunningServer, engine: Engine) -> None:
    reply = httpx.post(f"{server.base_url}/v1/systemone", json=BODY, trust_env=False, timeout=240).json()
    python = engine.decide(BODY["state"], QUESTIONS, x_abstain_below=1)
    assert reply["answers"] == msgspec.json.decode(msgspec.json.encode(python.answers))
    assert reply["usage"]["input_tokens"] == python.usage.input_tokens
    assert python.x_abstained == tuple(QUESTIONS)
    again = asyncio.run(engine.decide_async(BODY["state"], QUESTIONS))
    assert again.answers == python.answers
