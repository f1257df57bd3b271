"""`POST /v1/score`: what a client gets for what it sends."""

import gc
import json
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.client import EngineFault
from mis_core.tokenization import Tokenizer

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]


def error_of(reply: httpx.Response) -> dict[str, Any]:
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


def test_reply_has_the_fields_of_the_contract(
    http: httpx.Client, score_body: Body, check_score_reply: Callable[[bytes], object]
) -> None:
    reply = http.post("/v1/score", json=score_body())
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert set(body) == {"id", "object", "created", "model", "scores", "token_logprobs", "usage"}
    assert body["object"] == "scoring"
    assert body["model"] == "some/model"
    assert body["id"] == f"score-{reply.headers['x-request-id']}"
    assert body["token_logprobs"] is None
    assert body["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 0,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    check_score_reply(reply.content)


def test_the_route_without_a_version_is_the_same(http: httpx.Client, score_body: Body) -> None:
    one, other = (http.post(path, json=score_body()).json() for path in ("/v1/score", "/score"))
    assert one["scores"] == other["scores"]
    assert one["usage"] == other["usage"]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"queries": "a", "documents": ["b"]}, "queries"),
        ({"queries": ["a"], "items": ["b"]}, "queries"),
        ({"text_1": "a", "text_2": ["b", "c"], "truncate_prompt_tokens": 8}, "text_1"),
        ({"priority": 0, "data_1": "a", "data_2": "b"}, "data_1"),
        ({"query": "a", "documents": ["b"]}, "documents"),
    ],
)
def test_pairs_as_vllm_takes_them_are_sent_to_rerank(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    reply = http.post(path, json={"model": "some/model"} | body)
    error = error_of(reply)
    assert (reply.status_code, error["code"], error["param"]) == (400, "unknown_parameter", param)
    for name in ("/v1/rerank", "query", "items", "label_token_ids", "labels"):
        assert name in error["message"]


def test_a_wrong_item_gets_an_error_and_the_rest_their_scores(
    http: httpx.Client, pretended: Any, score_body: Body, check_score_reply: Callable[[bytes], object]
) -> None:
    items = [[4, 5], "text", [6], [1] * 300, [2000]]
    body = score_body(items=items, on_error="item", return_token_logprobs=True)
    reply = http.post("/v1/score", json=body)
    assert reply.status_code == 200
    check_score_reply(reply.content)
    got, plain = reply.json(), http.post("/v1/score", json=score_body(return_token_logprobs=True)).json()
    for name in ("scores", "token_logprobs"):
        assert got[name] == [plain[name][0], None, plain[name][1], None, None]
    assert got["usage"] == plain["usage"]
    assert [(error["index"], error["code"], error["param"]) for error in got["errors"]] == [
        (1, "mixed_input_types", "items"),
        (3, "context_length_exceeded", "items"),
        (4, "token_id_exceeds_vocab", "items"),
    ]
    assert all(f"items[{error['index']}]" in error["message"] for error in got["errors"][1:])
    assert [request.num_items for request in pretended.requests] == [2, 2]
    assert http.post("/v1/score", json=score_body(items=items)).status_code == 400


@pytest.mark.parametrize("labels", [[7, 8], [[7], [8, 9]]])
def test_errors_are_there_wherever_they_are_asked_for(
    http: httpx.Client, pretended: Any, score_body: Body, labels: list[Any]
) -> None:
    body = score_body(on_error="item", label_token_ids=labels)
    assert http.post("/v1/score", json=body).json()["errors"] == []
    pretended.requests.clear()
    nothing = http.post("/v1/score", json=body | {"items": [None, 7]}).json()
    assert (nothing["scores"], len(nothing["errors"])) == ([None, None], 2)
    assert nothing["usage"]["total_tokens"] == 0
    assert pretended.requests == []
    half = http.post("/v1/score", json=body | {"items": [[4, 5], 7]}).json()
    assert (len(half["scores"][0]), half["scores"][1]) == (1 if labels == [[7], [8, 9]] else 2, None)


def test_a_reply_says_how_the_request_was_laid_out_if_asked(http: httpx.Client, score_body: Body) -> None:
    layout = http.post("/v1/score", json=score_body(return_layout=True)).json()["layout"]
    assert layout == {
        "algorithm": "packed",
        "reason": "",
        "steps": 0,
        "segments": 2,
        "contexts": 1,
        "cached_tokens": 1,
        "query_tokens": 3,
        "step_tokens": 2048,
        "placements": [],
    }
    first = http.post("/v1/score", json=score_body(return_layout=True, item_first=True)).json()["layout"]
    assert (first["segments"], first["contexts"]) == (2, 0)
    empty = http.post("/v1/score", json=score_body(return_layout=True, items=[[4], [], [5]])).json()["layout"]
    assert (empty["segments"], empty["contexts"]) == (3, 2)


def test_a_layout_says_where_each_item_was_computed(
    http: httpx.Client, pretended: Any, score_body: Body, check_score_reply: Callable[[bytes], object]
) -> None:
    # The query, then two segments for each item: one for the label of one token, one for the other.
    rows = [[0, 0, 0, -1, 3, 0], [0, 0, 64, 0, 1, 3], [0, 0, 65, 1, 2, 3], [1, 0, 0, 2, 1, 3], [1, 0, 1, 3, 2, 3]]
    pretended.placements = np.array(rows, np.int32)
    body = score_body(items=[[4], 7, [5]], labels=[" yes", " yes no"], return_layout=True, on_error="item")
    del body["label_token_ids"]
    reply = http.post("/v1/score", json=body)
    check_score_reply(reply.content)
    names = ["step", "shard", "row", "item", "tokens", "context_tokens"]
    placements = reply.json()["layout"]["placements"]
    assert [list(placement) for placement in placements] == [names] * 5
    assert [placement["item"] for placement in placements] == [None, 0, 0, 2, 2]
    assert list(placements[2].values()) == [0, 0, 65, 0, 2, 3]


def test_a_reply_says_where_its_time_went(http: httpx.Client, score_body: Body) -> None:
    stages = http.post("/v1/score", json=score_body()).headers["server-timing"].split(", ")
    assert {"tokenize", "finish"} <= {stage.partition(";dur=")[0] for stage in stages}
    assert all(float(stage.partition(";dur=")[2]) >= 0 for stage in stages)


def test_scores_are_full_vocabulary_probabilities_in_order(http: httpx.Client, score_body: Body) -> None:
    scores = http.post("/v1/score", json=score_body()).json()["scores"]
    np.testing.assert_allclose(scores, np.exp(np.array([[0.75, 0.85], [0.76, 0.86]]) - 4), rtol=1e-5)


def test_softmax_scores_sum_to_one(http: httpx.Client, score_body: Body) -> None:
    scores = http.post("/v1/score", json=score_body(apply_softmax=True)).json()["scores"]
    np.testing.assert_allclose(np.sum(scores, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(scores[0][1] / scores[0][0], np.exp(0.1), rtol=1e-5)


def test_rows_are_as_long_as_the_labels_of_their_item(http: httpx.Client, score_body: Body) -> None:
    reply = http.post("/v1/score", json=score_body(label_token_ids=[[7], [8, 9, 8]], return_token_logprobs=True))
    body = reply.json()
    assert [len(row) for row in body["scores"]] == [1, 3]
    assert [len(row) for row in body["token_logprobs"]] == [1, 3]
    np.testing.assert_allclose(np.log(body["scores"][1]), body["token_logprobs"][1], rtol=1e-4)
    assert body["scores"][1][0] == body["scores"][1][2]


def test_text_reaches_the_engine_as_the_ids_of_the_joined_string(
    http: httpx.Client, pretended: Any, tokenizer: Tokenizer
) -> None:
    body = {"query": "Is this spam? ", "items": ["yes indeed", "no"], "labels": ["yes"], "model": "some/model"}
    assert http.post("/v1/score", json=body).status_code == 200
    (request,) = pretended.requests
    for item, text in enumerate(body["items"]):
        start, end = request.item_starts[item : item + 2]
        ids = [*request.query[: request.context_lens[item]], *request.item_tokens[start:end]]
        assert ids == list(tokenizer.encode(body["query"] + text))


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"query": []}, 400, "empty_query", "query"),
        ({"items": []}, 400, "empty_items", "items"),
        ({"label_token_ids": [5000]}, 422, "token_id_exceeds_vocab", "label_token_ids"),
        ({"items": [[1] * 300]}, 400, "context_length_exceeded", "items"),
        ({"no_such_field": 1}, 400, "unknown_parameter", "no_such_field"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"model": 7}, 400, "invalid_model_type", "model"),
    ],
)
def test_a_bad_request_never_reaches_the_engine(
    http: httpx.Client, pretended: Any, score_body: Body, changes: dict[str, Any], status: int, code: str, param: str
) -> None:
    reply = http.post("/v1/score", json=score_body(**changes))
    error = error_of(reply)
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)
    assert reply.headers["x-request-id"]
    assert pretended.requests == []


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ({"max_items_per_request": 1}, "too_many_items"),
        ({"max_labels_per_request": 1}, "too_many_labels"),
        ({"max_request_tokens": 5}, "too_many_tokens"),
    ],
)
def test_limits_are_the_configured_ones(connect: Connect, score_body: Body, limit: dict[str, int], code: str) -> None:
    reply = connect(**limit).post("/v1/score", json=score_body())
    assert (reply.status_code, error_of(reply)["code"]) == (400, code)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b'"text"',
        b'{"query": NaN}',
        b'{"a": 1e999}',
        b"\xff",
        b'"\\ud800"',
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_json_object_is_refused(http: httpx.Client, body: bytes) -> None:
    reply = http.post("/v1/score", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, error_of(reply)["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_refused(http: httpx.Client, score_body: Body, kind: str) -> None:
    reply = http.post("/v1/score", content=json.dumps(score_body()), headers={"content-type": kind})
    assert (reply.status_code, error_of(reply)["code"]) == (415, "unsupported_media_type")


def test_a_charset_in_the_content_type_is_accepted(http: httpx.Client, score_body: Body) -> None:
    kind = {"content-type": "Application/JSON; charset=utf-8"}
    assert http.post("/v1/score", content=json.dumps(score_body()), headers=kind).status_code == 200


def test_without_an_engine_the_client_is_told_when_to_come_back(
    http: httpx.Client, pretended: Any, score_body: Body
) -> None:
    pretended.ready, pretended.info = False, None
    reply = http.post("/v1/score", json=score_body())
    assert (reply.status_code, error_of(reply)["code"]) == (503, "engine_unavailable")
    assert 0 < int(reply.headers["retry-after"]) <= 60  # what every generation of the client honours


def test_an_engine_that_dies_meanwhile_is_told_likewise(http: httpx.Client, pretended: Any, score_body: Body) -> None:
    pretended.error = EngineUnavailable("pid 4711 at /secret/path was killed")
    reply = http.post("/v1/score", json=score_body())
    assert (reply.status_code, error_of(reply)["code"]) == (503, "engine_unavailable")
    assert "secret" not in reply.text


def test_what_only_the_engine_can_see_is_told(http: httpx.Client, pretended: Any, score_body: Body) -> None:
    pretended.error = RequestError("context_length_exceeded", "Item 3 is too long.", "items")
    reply = http.post("/v1/score", json=score_body())
    assert reply.status_code == 400
    assert error_of(reply)["message"] == "Item 3 is too long."


@pytest.mark.parametrize("error", [EngineFault("at /secret/path"), KeyError("/secret/path")])
def test_the_unforeseen_is_logged_and_not_told(
    http: httpx.Client, pretended: Any, score_body: Body, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    pretended.error = error
    reply = http.post("/v1/score", json=score_body())
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    assert "Traceback" not in reply.text
    assert reply.headers["x-request-id"] in caplog.text
    assert "/secret/path" in caplog.text
    pretended.error = None
    assert http.post("/v1/score", json=score_body()).status_code == 200


def test_the_unforeseen_of_other_routes_is_told_the_same(
    http: httpx.Client, pretended: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pretended.error = KeyError("/secret/path")
    reply = http.post("/flush_cache")
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    (failure,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert reply.headers["x-request-id"] in failure.message
    assert "/secret/path" in caplog.text


def test_scores_that_are_not_finite_are_an_error(http: httpx.Client, pretended: Any, score_body: Body) -> None:
    pretended.offset = float("nan")
    assert http.post("/v1/score", json=score_body()).status_code == 500


def test_a_full_queue_is_429_until_a_permit_is_free(connect: Connect, pretended: Any, score_body: Body) -> None:
    http = connect(max_queued_requests=1)
    pretended.hangs = True
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/score", json=score_body(), timeout=0.2)
    # The client above has left; its permit must be free.
    assert pretended.was_cancelled.wait(60)
    pretended.hangs = False
    assert http.post("/v1/score", json=score_body()).status_code == 200
    pretended.hangs = True
    pretended.started.clear()
    with leaving_client(http, score_body()):
        assert pretended.started.wait(60)
        reply = http.post("/v1/score", json=score_body())
    assert (reply.status_code, error_of(reply)["code"]) == (429, "queue_full")
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("padding", [0, 60_000, 100_000, 1_000_000], ids=lambda size: f"{size} more bytes")
def test_a_client_that_leaves_frees_its_work(
    http: httpx.Client, pretended: Any, score_body: Body, padding: int
) -> None:
    pretended.hangs = True
    with leaving_client(http, score_body(), padding):
        assert pretended.started.wait(60)
        assert not pretended.was_cancelled.is_set()
    assert pretended.was_cancelled.wait(60)


def test_a_client_that_leaves_its_requests_causes_no_fault(
    http: httpx.Client, pretended: Any, score_body: Body, caplog: pytest.LogCaptureFixture
) -> None:
    pretended.hangs = True
    with leaving_client(http, score_body(), times=3):
        assert pretended.started.wait(60)
    assert pretended.was_cancelled.wait(60)
    pretended.hangs = False
    assert http.post("/v1/score", json=score_body()).status_code == 200
    gc.collect()  # what no task retrieved is logged when the task goes
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def leaving_client(http: httpx.Client, body: dict[str, Any], padding: int = 0, times: int = 1) -> socket.socket:
    """Send a request over a connection that closes, unanswered, at the end of the `with` block."""
    content = json.dumps(body) + " " * padding
    head = "POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(content)}\r\n\r\n"
    connection = socket.create_connection((http.base_url.host, http.base_url.port or 80))
    for part in (head, content) if times == 1 else ((head + content) * times,):
        connection.sendall(part.encode())
        time.sleep(0.05)  # as of clients that write the body when the head is on its way
    return connection
