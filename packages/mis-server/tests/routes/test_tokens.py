"""`/tokenize` and `/detokenize`: the ids that scores are made from."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from mis_core.tokenization import Tokenizer

TEXT = "Is a café open?"


def test_a_text_becomes_the_ids_of_the_tokenizer_and_comes_back(http: httpx.Client, tokenizer: Tokenizer) -> None:
    reply = http.post("/tokenize", json={"prompt": TEXT}).json()
    assert reply["tokens"] == list(tokenizer.encode(TEXT))
    assert (reply["count"], reply["max_model_len"], reply["token_strs"]) == (len(reply["tokens"]), 256, None)
    assert http.post("/detokenize", json={"tokens": reply["tokens"]}).json() == {"prompt": TEXT}


def test_tokens_are_spelled_on_request(http: httpx.Client) -> None:
    reply = http.post("/tokenize", json={"prompt": "ab", "return_token_strs": True, "model": "some/model"}).json()
    assert len(reply["token_strs"]) == reply["count"]
    assert "".join(reply["token_strs"]) == "ab"


def test_no_tokens_are_no_text(http: httpx.Client) -> None:
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/tokenize", {}, 400, "invalid_prompt", "prompt"),
        ("/tokenize", {"prompt": 3}, 400, "invalid_prompt", "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, 400, "invalid_prompt", "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "propmt": "a"}, 400, "unknown_parameter", "propmt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model_not_found", "model"),
        ("/tokenize", {"prompt": "a", "model": []}, 400, "invalid_model_type", "model"),
        ("/detokenize", {}, 400, "invalid_tokens", "tokens"),
        ("/detokenize", {"tokens": "1"}, 400, "invalid_tokens", "tokens"),
        ("/detokenize", {"tokens": [1.5]}, 400, "invalid_token_id_type", "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "invalid_token_id_type", "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "negative_token_id", "tokens"),
        ("/detokenize", {"tokens": [1024]}, 422, "token_id_exceeds_vocab", "tokens"),
        ("/detokenize", {"tokens": [2**70]}, 422, "token_id_exceeds_vocab", "tokens"),
    ],
)
def test_what_is_wrong_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    reply = http.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)


def test_length_has_bounds_as_for_scores(connect: Callable[..., httpx.Client], tokenizer: Tokenizer) -> None:
    http = connect(max_text_characters=10, max_request_tokens=3)
    for path, body, param in [
        ("/tokenize", {"prompt": "eleven char"}, "prompt"),
        ("/tokenize", {"prompt": "7 8 9"}, "prompt"),
        ("/detokenize", {"tokens": [1, 2, 3, 4]}, "tokens"),
    ]:
        reply = http.post(path, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "too_many_tokens", param)
    assert http.post("/detokenize", json={"tokens": [1, 2, 3]}).status_code == 200
    longest = max(range(tokenizer.vocab_size), key=lambda token: len(tokenizer.decode([token])))
    reply = http.post("/detokenize", json={"tokens": [longest] * 3})  # few tokens may be much text
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many_tokens")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_time_and_places_are_those_of_scores(
    connect: Callable[..., httpx.Client], pretended: Any, score_body: Callable[..., Any], path: str
) -> None:
    http = connect(max_queued_requests=1)
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    reply = http.post(path, json=body, headers={"x-request-timeout": "soon"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request_timeout")
    pretended.hangs = True
    with ThreadPoolExecutor(1) as background:
        waiting = background.submit(http.post, "/v1/score", json=score_body(), headers={"x-request-timeout": "5"})
        assert pretended.started.wait(60)
        reply = http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert waiting.result().status_code == 504
    assert http.post(path, json=body).status_code == 200
