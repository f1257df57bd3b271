"""`POST /v1/chat/completions`: what a client gets for what it sends."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from mis_core.tokenization import Tokenizer
from mis_server.schemas.chat import ChatReply

MESSAGES = [{"role": "user", "content": "Do cats purr?"}]


def body(**changes: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": 1} | changes


def send(http: httpx.Client, path: str = "/v1/chat/completions", **changes: Any) -> dict[str, Any]:
    reply = http.post(path, json=body(**changes))
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_reply_is_openais(http: httpx.Client, tokenizer: Tokenizer, pretended: Any) -> None:
    reply = http.post("/v1/chat/completions", json=body())
    (request,) = pretended.requests
    expected = {
        "id": f"chatcmpl-{reply.headers['x-request-id']}",
        "object": "chat.completion",
        "created": reply.json()["created"],
        "model": "some/model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": tokenizer.decode([70]), "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": len(request.query),
            "completion_tokens": 1,
            "total_tokens": len(request.query) + 1,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "system_fingerprint": None,
    }
    assert reply.json() == expected
    assert "tokenize;dur=" in reply.headers["server-timing"]
    assert set(expected) == set(ChatReply.__dataclass_fields__)


def test_both_paths_are_the_same_route(http: httpx.Client) -> None:
    assert send(http, "/chat/completions")["choices"] == send(http)["choices"]


def test_the_engine_gets_the_rendered_messages(http: httpx.Client, tokenizer: Tokenizer, pretended: Any) -> None:
    send(http)
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render(MESSAGES)
    assert pretended.requests[0].query.tolist() == tokenizer.encode(text, add_special_tokens=False).tolist()


def test_log_probabilities_cover_the_token_the_top_and_labels(http: httpx.Client, tokenizer: Tokenizer) -> None:
    (choice,) = send(http, logprobs=True, top_logprobs=3, label_token_ids=[7, 8])["choices"]
    (token,) = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert (token["token"], bytes(token["bytes"])) == (tokenizer.decode([70]), tokenizer.token_bytes(70))
    np.testing.assert_allclose(token["logprob"], 0.7 - 4, rtol=1e-6)
    assert [top["token"] for top in token["top_logprobs"]] == [tokenizer.decode([each]) for each in (40, 41, 42)]
    np.testing.assert_allclose([top["logprob"] for top in token["top_logprobs"]], [-1, -1.1, -1.2], rtol=1e-6)
    assert [label["token_id"] for label in choice["labels"]] == [7, 8]
    assert choice["labels"][0]["token"] == tokenizer.decode([7])
    logprobs = [label["logprob"] for label in choice["labels"]]
    np.testing.assert_allclose(np.diff(logprobs), 0.1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(logprobs), [label["probability"] for label in choice["labels"]], rtol=1e-6)


def test_every_choice_has_its_token(http: httpx.Client, tokenizer: Tokenizer) -> None:
    reply = send(http, n=3)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    tokens = [tokenizer.decode([each]) for each in (70, 71, 70)]
    assert [choice["message"]["content"] for choice in reply["choices"]] == tokens
    assert reply["usage"]["completion_tokens"] == 3


def test_a_token_that_ends_the_answer_is_a_stop_without_text(
    http: httpx.Client, tokenizer: Tokenizer, pretended: Any
) -> None:
    pretended.next_ids = list(tokenizer.end_ids)
    (choice,) = send(http, logprobs=True)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert choice["logprobs"]["content"][0]["token"] == tokenizer.decode(pretended.next_ids[:1])


def test_a_stop_text_ends_the_answer_before_it(http: httpx.Client, tokenizer: Tokenizer, pretended: Any) -> None:
    pretended.next_ids = [tokenizer.label_id(" the")]
    assert answer(send(http, stop=["h", "zzz"])) == (" t", "stop")
    assert answer(send(http, stop=["zzz"])) == (" the", "length")


def answer(reply: dict[str, Any]) -> tuple[str, str]:
    (choice,) = reply["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def test_part_of_a_character_is_exact_in_the_bytes(http: httpx.Client, tokenizer: Tokenizer, pretended: Any) -> None:
    part = next(each for each in range(1000) if tokenizer.token_bytes(each) == b"\xe7")
    pretended.next_ids = [part]
    (choice,) = send(http, logprobs=True)["choices"]
    assert choice["message"]["content"] == "\ufffd"
    assert choice["logprobs"]["content"][0]["bytes"] == [0xE7]


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 2, "labels": ["a"], "n": 2}])
def test_events_together_are_the_reply(http: httpx.Client, fields: dict[str, Any]) -> None:
    whole = send(http, **fields)
    streamed = http.post("/v1/chat/completions", json=body(stream=True, **fields))
    chunks = events(streamed)
    assert "tokenize;dur=" in streamed.headers["server-timing"]
    for choice in whole["choices"]:
        first, token, last = [
            piece for chunk in chunks for piece in chunk["choices"] if piece["index"] == choice["index"]
        ]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert token["delta"] == {"content": choice["message"]["content"]}
        assert (token["logprobs"], token.get("labels")) == (choice["logprobs"], choice.get("labels"))
        assert (last["delta"], last["finish_reason"]) == ({}, choice["finish_reason"])
        assert first["finish_reason"] is token["finish_reason"] is None
    assert {(chunk["object"], chunk["model"]) for chunk in chunks} == {("chat.completion.chunk", "some/model")}
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{streamed.headers['x-request-id']}"}
    assert all("usage" not in chunk for chunk in chunks)


def test_the_usage_is_an_event_of_its_own(http: httpx.Client) -> None:
    chunks = events(http.post("/v1/chat/completions", json=body(stream=True, stream_options={"include_usage": True})))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == send(http)["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_errors_come_before_the_first_event(http: httpx.Client, pretended: Any) -> None:
    reply = http.post("/v1/chat/completions", json=body(stream=True, max_tokens=-1))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_max_tokens")
    pretended.error = ZeroDivisionError("a reason")
    reply = http.post("/v1/chat/completions", json=body(stream=True))
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")


def test_values_that_are_not_finite_are_an_error(http: httpx.Client, pretended: Any) -> None:
    pretended.offset = float("nan")
    assert http.post("/v1/chat/completions", json=body(label_token_ids=[7])).status_code == 500


def test_answered_chats_are_counted(http: httpx.Client) -> None:
    send(http)
    assert 'mis_requests_total{task="chat"} 1.0' in http.get("/metrics").text


def test_a_client_that_leaves_frees_its_work(http: httpx.Client, pretended: Any) -> None:
    pretended.hangs = True
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=body(stream=True), timeout=0.5)
    assert pretended.was_cancelled.wait(60)


@pytest.mark.parametrize("limit", [{"max_text_characters": 20}, {"max_request_tokens": 5}])
def test_limits_are_the_configured_ones(connect: Callable[..., httpx.Client], limit: dict[str, int]) -> None:
    reply = connect(**limit).post("/v1/chat/completions", json=body())
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many_tokens")
