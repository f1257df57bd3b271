"""Answers of more tokens than one, by `/v1/completions` and `/v1/chat/completions`."""

import json
import socket
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import httpx
import numpy as np
import pytest

from mis_core.errors import EngineUnavailable
from mis_core.tokenization import Tokenizer

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Do cats purr?"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Do cats purr?"}]},
}
paths = pytest.mark.parametrize("path", BODIES)


def send(http: httpx.Client, path: str, **changes: Any) -> dict[str, Any]:
    reply = http.post(path, json=BODIES[path] | changes)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(http: httpx.Client, path: str, **changes: Any) -> Iterator[dict[str, Any]]:
    with http.stream("POST", path, json=BODIES[path] | {"stream": True} | changes) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return choice["text"]
    return choice.get("message", choice.get("delta"))["content"] if choice.get("delta") != {} else ""


def spell(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")


@pytest.fixture
def words(tokenizer: Tokenizer, pretended: Any) -> list[int]:
    """What the engine writes, over and over."""
    pretended.next_ids = [tokenizer.label_id(word) for word in (" the", "a", "b", "c")]
    return pretended.next_ids


@paths
def test_an_answer_has_as_many_tokens_as_asked_for(
    http: httpx.Client, tokenizer: Tokenizer, pretended: Any, words: list[int], path: str
) -> None:
    reply = send(http, path, max_tokens=6, seed=3, top_k=5)
    (choice,) = reply["choices"]
    assert text_of(choice) == spell(tokenizer, [*words, *words[:2]])
    assert choice["finish_reason"] == "length"
    (sequence,) = pretended.sequences
    assert pretended.requests == []
    count = len(sequence.prompt)
    assert (sequence.max_new_tokens, sequence.sampling.top_k) == (6, 5)
    assert reply["usage"] == {
        "prompt_tokens": count,
        "completion_tokens": 6,
        "total_tokens": count + 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@paths
def test_without_a_number(http: httpx.Client, pretended: Any, words: list[int], path: str) -> None:
    tokens = send(http, path)["usage"]["completion_tokens"]
    assert tokens == (16 if path == "/v1/completions" else 256 - len(pretended.sequences[0].prompt))


@paths
def test_a_token_that_ends_the_answer_is_not_in_its_text(
    http: httpx.Client, tokenizer: Tokenizer, pretended: Any, words: list[int], path: str
) -> None:
    words.append(min(tokenizer.end_ids))
    reply = send(http, path, max_tokens=50)
    (choice,) = reply["choices"]
    assert (text_of(choice), choice["finish_reason"]) == (spell(tokenizer, words[:-1]), "stop")
    assert reply["usage"]["completion_tokens"] == 5
    assert send(http, path, max_tokens=50, ignore_eos=True)["usage"]["completion_tokens"] == 50
    assert send(http, path, max_tokens=50, stop_token_ids=[words[1]])["usage"]["completion_tokens"] == 2


@paths
def test_a_stop_text_over_several_tokens_ends_the_sequence(
    http: httpx.Client, pretended: Any, words: list[int], path: str
) -> None:
    reply = send(http, path, max_tokens=200, stop=["bc", "zzz"])
    (choice,) = reply["choices"]
    assert (text_of(choice), choice["finish_reason"]) == (" thea", "stop")
    assert reply["usage"]["completion_tokens"] == 4
    assert pretended.written < 10
    pieces = [event["choices"][0] for event in events(http, path, max_tokens=200, stop=["bc", "zzz"])]
    assert "".join(map(text_of, pieces)) == " thea"
    assert pieces[-1]["finish_reason"] == "stop"


@paths
@pytest.mark.parametrize("n", [1, 3])
def test_events_together_are_the_reply(http: httpx.Client, words: list[int], path: str, n: int) -> None:
    fields = {"max_tokens": 5, "n": n, "logprobs": 2 if path == "/v1/completions" else True}
    whole = send(http, path, **fields)
    *pieces, last = events(http, path, stream_options={"include_usage": True}, **fields)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(piece["usage"] is None for piece in pieces)
    for choice in whole["choices"]:
        mine = [each for piece in pieces for each in piece["choices"] if each["index"] == choice["index"]]
        assert "".join(map(text_of, mine)) == text_of(choice)
        assert [each["finish_reason"] for each in mine][:-1] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        told = [each["logprobs"] for each in mine if each["logprobs"]]
        joined = {
            name: [*chain.from_iterable(each[name] for each in told)]
            for name in choice["logprobs"]
            if name != "refusal"
        }
        assert joined == {name: value for name, value in choice["logprobs"].items() if name != "refusal"}


def test_log_probabilities_of_a_chats_tokens(http: httpx.Client, tokenizer: Tokenizer, words: list[int]) -> None:
    (choice,) = send(http, "/v1/chat/completions", max_tokens=4, logprobs=True, top_logprobs=2)["choices"]
    told = choice["logprobs"]["content"]
    assert [bytes(token["bytes"]) for token in told] == [tokenizer.token_bytes(token) for token in words]
    np.testing.assert_allclose([token["logprob"] for token in told], 0.01 * np.array(words) - 4, rtol=1e-6)
    assert [[top["token"] for top in token["top_logprobs"]] for token in told] == [
        [tokenizer.decode([40]), tokenizer.decode([41])]
    ] * 4


def test_log_probabilities_of_a_completion_follow_its_prompts(http: httpx.Client, words: list[int]) -> None:
    (choice,) = send(http, "/v1/completions", max_tokens=4, logprobs=1, echo=True)["choices"]
    told = choice["logprobs"]
    assert choice["text"] == "".join(told["tokens"]) == "Do cats purr? theabc"
    assert all(
        choice["text"][place:].startswith(token)
        for place, token in zip(told["text_offset"], told["tokens"], strict=True)
    )
    np.testing.assert_allclose(told["token_logprobs"][-4:], 0.01 * np.array(words) - 4, rtol=1e-6)
    pieces = [event["choices"][0] for event in events(http, "/v1/completions", max_tokens=4, logprobs=1, echo=True)]
    assert pieces[0]["text"] == "Do cats purr? the"
    assert [*chain.from_iterable(piece["logprobs"]["text_offset"] for piece in pieces)] == told["text_offset"]


def test_every_prompt_has_its_answers(http: httpx.Client, pretended: Any, words: list[int]) -> None:
    reply = send(http, "/v1/completions", prompt=["x", "y"], n=2, best_of=3, max_tokens=2, echo=True)
    assert [choice["text"] for choice in reply["choices"]] == ["x thea"] * 2 + ["y thea"] * 2
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert len(pretended.sequences) == 6
    assert reply["usage"]["completion_tokens"] == 12


def test_labels_are_of_the_first_token(http: httpx.Client, words: list[int]) -> None:
    path, fields = "/v1/chat/completions", {"label_token_ids": [7, 8]}
    (short,) = send(http, path, max_tokens=1, **fields)["choices"]
    (long,) = send(http, path, max_tokens=3, **fields)["choices"]
    assert long["labels"] == short["labels"] != []
    told = [event["choices"][0].get("labels") for event in events(http, path, max_tokens=3, **fields)]
    assert [labels for labels in told if labels] == [short["labels"]]


@paths
def test_characters_of_several_tokens_are_told_whole(
    http: httpx.Client, tokenizer: Tokenizer, pretended: Any, path: str
) -> None:
    pretended.next_ids = tokenizer.encode("é猫", add_special_tokens=False).tolist()
    pieces = [text_of(event["choices"][0]) for event in events(http, path, max_tokens=len(pretended.next_ids))]
    assert "".join(pieces) == "é猫"
    assert {piece for piece in pieces if piece} == {"é", "猫"}


@paths
def test_an_error_in_the_middle_is_an_event_and_the_last(
    http: httpx.Client, pretended: Any, words: list[int], path: str
) -> None:
    pretended.faulty_at = 3
    for error, code in (
        (EngineUnavailable("gone"), "engine_unavailable"),
        (ZeroDivisionError("a reason"), "internal_error"),
    ):
        pretended.error = error
        with http.stream("POST", path, json=BODIES[path] | {"stream": True, "max_tokens": 9}) as reply:
            assert reply.status_code == 200
            lines = [line for line in reply.iter_lines() if line]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == code
        whole = http.post(path, json=BODIES[path] | {"max_tokens": 9})
        assert (whole.status_code, whole.json()["error"]["code"]) == (503 if code[0] == "e" else 500, code)
    pretended.error = None
    assert send(http, path, max_tokens=9)["usage"]["completion_tokens"] == 9


@paths
def test_values_that_are_not_finite_are_an_error(
    http: httpx.Client, pretended: Any, words: list[int], path: str
) -> None:
    pretended.offset = float("nan")
    assert http.post(path, json=BODIES[path] | {"max_tokens": 9}).status_code == 500


@paths
def test_a_deadline_ends_a_stream_with_an_error(
    http: httpx.Client, pretended: Any, words: list[int], path: str
) -> None:
    pretended.faulty_at, pretended.hangs = 3, True
    body = BODIES[path] | {"stream": True, "max_tokens": 9}
    with http.stream("POST", path, json=body, headers={"x-request-timeout": "0.5"}) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert pretended.was_cancelled.wait(60)


@paths
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_work(
    http: httpx.Client, pretended: Any, words: list[int], path: str, stream: bool
) -> None:
    pretended.faulty_at, pretended.hangs = 3, True
    for timeout in (0.5, 5, 50):  # the last of a busy machine, where a client may leave before its work begins
        with pytest.raises(httpx.ReadTimeout):
            http.post(path, json=BODIES[path] | {"stream": stream, "max_tokens": 9}, timeout=timeout)
        if pretended.started.is_set():
            break
    assert pretended.was_cancelled.wait(60)


@pytest.mark.parametrize("path", [pytest.param("/v1/completions", marks=pytest.mark.full), "/v1/chat/completions"])
def test_a_slow_reader_holds_up_nobody_and_frees_its_work(
    http: httpx.Client, pretended: Any, words: list[int], path: str
) -> None:
    pretended.info = type(pretended.info)(vocab_size=1024, context_length=200_000)
    body = json.dumps(BODIES[path] | {"stream": True, "max_tokens": 300, "n": 64}).encode()
    address = http.base_url.host, http.base_url.port
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    readers = []
    for _ in range(3):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(address)
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        readers.append(reader)
    written = -1
    while pretended.written > written or not written:  # until no further sequence is begun
        written = pretended.written
        time.sleep(0.5)
    assert len(pretended.sequences) < 3 * 64
    assert send(http, path, max_tokens=9)["usage"]["completion_tokens"] == 9
    for reader in readers:
        reader.close()
    for _ in range(600):
        if "mis_num_tokens_under_way 0.0" in http.get("/metrics").text:
            break
        time.sleep(0.1)
    else:
        pytest.fail("tokens are under way that nobody waits for")


@paths
def test_tokens_are_counted_and_timed(http: httpx.Client, words: list[int], path: str) -> None:
    usage = send(http, path, max_tokens=6)["usage"]
    text = http.get("/metrics").text
    assert "mis_generation_tokens_total 6.0" in text
    assert "mis_time_to_first_token_seconds_count 1.0" in text
    assert "mis_time_per_output_token_seconds_count 5.0" in text
    assert f"mis_prompt_tokens_total {usage['prompt_tokens']}.0" in text
    assert "mis_cached_prompt_tokens_total 1.0" in text


@paths
def test_proxies_are_told_not_to_hold_events_back(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json=BODIES[path] | {"stream": True, "max_tokens": 2})
    assert (reply.headers["x-accel-buffering"], reply.headers["cache-control"]) == ("no", "no-cache")
    assert "x-accel-buffering" not in http.post(path, json=BODIES[path] | {"max_tokens": 2}).headers
