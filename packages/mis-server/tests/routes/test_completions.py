"""`POST /v1/completions`: what a client gets for what it sends."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer

from mis_core.tokenization import Tokenizer
from mis_server.schemas.completions import CompletionReply

PATH = "/v1/completions"


def body(**changes: Any) -> dict[str, Any]:
    return {"prompt": "Do cats purr?", "max_tokens": 1} | changes


def send(http: httpx.Client, path: str = PATH, **changes: Any) -> dict[str, Any]:
    reply = http.post(path, json=body(**changes))
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_reply_is_openais(http: httpx.Client, tokenizer: Tokenizer) -> None:
    reply = http.post(PATH, json=body())
    count = len(tokenizer.encode("Do cats purr?"))
    expected = {
        "id": f"cmpl-{reply.headers['x-request-id']}",
        "object": "text_completion",
        "created": reply.json()["created"],
        "model": "some/model",
        "choices": [{"index": 0, "text": tokenizer.decode([70]), "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": count,
            "completion_tokens": 1,
            "total_tokens": count + 1,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "system_fingerprint": None,
    }
    assert reply.json() == expected
    assert "tokenize;dur=" in reply.headers["server-timing"]
    assert set(expected) == set(CompletionReply.__dataclass_fields__)


def test_both_paths_are_the_same_route(http: httpx.Client) -> None:
    assert send(http, "/completions")["choices"] == send(http)["choices"]


def test_log_probabilities_of_the_prompt_and_of_the_new_token(http: httpx.Client, tokenizer: Tokenizer) -> None:
    text = "Do cats purr?"
    ids = tokenizer.encode(text).tolist()
    (choice,) = send(http, echo=True, logprobs=3)["choices"]
    told = choice["logprobs"]
    assert choice["text"] == text + tokenizer.decode([70])
    assert "".join(told["tokens"]) == choice["text"]
    assert all(
        choice["text"][place:].startswith(token)
        for place, token in zip(told["text_offset"], told["tokens"], strict=True)
    )
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    own = [0.01 * before + 0.1 * token - 4 for before, token in pairwise(ids)]
    np.testing.assert_allclose(told["token_logprobs"][1:-1], np.minimum(own, 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(told["token_logprobs"][-1], 0.7 - 4, rtol=1e-6)
    for logprob, token, top in list(zip(told["token_logprobs"], told["tokens"], told["top_logprobs"], strict=True))[1:]:
        assert len(top) in (3, 4)
        assert top[token] == logprob
        assert set(top) <= {token, *(tokenizer.decode([each]) for each in (40, 41, 42))}


def test_logprobs_of_the_new_token_alone(http: httpx.Client, tokenizer: Tokenizer) -> None:
    (choice,) = send(http, logprobs=0)["choices"]
    token = tokenizer.decode([70])
    logprob = choice["logprobs"]["token_logprobs"][0]
    assert choice["logprobs"] == {
        "tokens": [token],
        "token_logprobs": [logprob],
        "top_logprobs": [{token: logprob}],
        "text_offset": [0],
    }


def test_only_the_prompt(http: httpx.Client, tokenizer: Tokenizer) -> None:
    (choice,) = send(http, echo=True, logprobs=1, max_tokens=0)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Do cats purr?", "length")
    assert len(choice["logprobs"]["tokens"]) == len(tokenizer.encode("Do cats purr?"))
    reply = send(http, echo=True, max_tokens=0)
    assert reply["choices"][0]["logprobs"] is None
    assert reply["usage"]["completion_tokens"] == 0


def test_texts_and_ids_alone_and_together_are_answered_alike(
    http: httpx.Client, tokenizer: Tokenizer, pretended: Any
) -> None:
    pretended.next_ids = [70]
    texts = ["Do cats purr?", "Do cats bark?", "Rain."]
    ids = [tokenizer.encode(text).tolist() for text in texts]
    fields: dict[str, Any] = {"echo": True, "logprobs": 2}
    alone = [send(http, prompt=text, **fields)["choices"][0] for text in texts]
    for prompt in (texts, ids):
        reply = send(http, prompt=prompt, **fields)
        assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
        assert [choice["logprobs"] for choice in reply["choices"]] == [choice["logprobs"] for choice in alone]
        assert [choice["text"] for choice in reply["choices"]] == [choice["text"] for choice in alone]
        assert reply["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert send(http, prompt=ids[0], **fields)["choices"] == [alone[0]]


def test_what_the_tokenizer_adds_has_no_place_in_the_text(http: httpx.Client, tokenizer: Tokenizer) -> None:
    (choice,) = send(http, prompt="a cat", echo=True, logprobs=0)["choices"]
    assert choice["text"].startswith("a cat")
    assert choice["logprobs"]["text_offset"][-1] == len("a cat")


@pytest.mark.parametrize("text", ["cafe\u0301 is open e\u0301", " 猫 \n é", "Do cats purr?"])
def test_tokens_are_where_transformers_finds_them_in_the_text(
    http: httpx.Client, checkpoint: Path, tokenizer: Tokenizer, text: str
) -> None:
    """The tokenizer normalises to NFC, so a token may spell less than there is."""
    reference = AutoTokenizer.from_pretrained(str(checkpoint))(text, return_offsets_mapping=True)
    whole = send(http, prompt=text, echo=True, logprobs=0)["choices"][0]
    assert whole["text"] == text + tokenizer.decode([70])
    assert whole["logprobs"]["text_offset"] == [begin for begin, _ in reference["offset_mapping"]] + [len(text)]
    (event,) = events(http.post(PATH, json=body(prompt=text, echo=True, logprobs=0, stream=True)))
    assert event["choices"][0]["logprobs"] == whole["logprobs"]


def test_what_is_put_behind_a_text_is_at_its_end(
    connected: Any, pretended: Any, tokenizers: Any, tokenizer: Tokenizer
) -> None:
    backend = Backend.from_str(json.loads(tokenizer.to_json())["tokenizer"])
    end = "<|endoftext|>"
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, backend.token_to_id(end))]
    )
    with connected(pretended, type(tokenizers)(Tokenizer(backend))) as http:
        (choice,) = send(http, prompt="a cat", echo=True, logprobs=0, max_tokens=0)["choices"]
    tokens, places = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert ("".join(tokens), tokens[-1], places[-1]) == (f"a cat{end}", end, 5)
    assert all("a cat"[place:].startswith(token) for place, token in zip(places[:-1], tokens[:-1], strict=True))


def test_parts_of_a_character_begin_where_the_character_does(http: httpx.Client, tokenizer: Tokenizer) -> None:
    text = "a猫é 猫"
    ids = tokenizer.encode(text).tolist()
    assert len(ids) > len(text)
    (of_text,), (of_ids,) = (send(http, prompt=prompt, echo=True, logprobs=0)["choices"] for prompt in (text, ids))
    assert of_text == of_ids
    assert len(set(of_text["logprobs"]["text_offset"])) < len(ids)


def test_part_of_a_character_is_told_by_its_bytes(http: httpx.Client, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é猫", add_special_tokens=False).tolist()
    assert len(ids) > 2  # or the case is none
    (choice,) = send(http, prompt=ids, echo=True, logprobs=0)["choices"]
    assert choice["text"] == "é猫" + tokenizer.decode([70])
    parts = [token for token in choice["logprobs"]["tokens"] if token.startswith("bytes:")]
    assert parts
    data = b"".join(bytes.fromhex(part.removeprefix("bytes:").replace("\\x", "")) for part in parts)
    assert "é猫".encode().endswith(data)
    assert choice["logprobs"]["text_offset"][-1] == 2


def test_an_id_without_a_token_is_told_by_its_id(http: httpx.Client, tokenizer: Tokenizer) -> None:
    unused = next(each for each in range(1023, 0, -1) if not tokenizer.token_bytes(each))
    (choice,) = send(http, prompt=[unused], echo=True, logprobs=0)["choices"]
    assert choice["logprobs"]["tokens"][0] == f"token_id:{unused}"
    assert choice["text"] == tokenizer.decode([70])


def test_a_token_that_ends_the_answer_is_a_stop_without_text(
    http: httpx.Client, tokenizer: Tokenizer, pretended: Any
) -> None:
    pretended.next_ids = list(tokenizer.end_ids)
    (choice,) = send(http, logprobs=1)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert choice["logprobs"]["tokens"] == [tokenizer.decode(pretended.next_ids[:1])]


def test_a_stop_text_ends_the_answer_before_it(http: httpx.Client, tokenizer: Tokenizer, pretended: Any) -> None:
    pretended.next_ids = [tokenizer.label_id(" the")]
    (choice,) = send(http, stop=["h", "zzz"], echo=True)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Do cats purr? t", "stop")
    (choice,) = send(http, stop="cats")["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" the", "length")


def test_every_prompt_has_its_choices(http: httpx.Client, tokenizer: Tokenizer) -> None:
    reply = send(http, prompt=["a", "b"], n=2, echo=True)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    tokens = [tokenizer.decode([each]) for each in (70, 71)]
    assert [choice["text"] for choice in reply["choices"]] == [f"{text}{token}" for text in "ab" for token in tokens]
    assert reply["usage"]["completion_tokens"] == 4
    (best,) = send(http, best_of=2)["choices"]
    assert best["text"] == tokens[1]


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2, "echo": True, "n": 2}, {"prompt": ["a", "b"]}])
def test_events_together_are_the_reply(http: httpx.Client, fields: dict[str, Any]) -> None:
    whole = send(http, **fields)
    chunks = events(http.post(PATH, json=body(stream=True, **fields)))
    assert [chunk["choices"] for chunk in chunks] == [[choice] for choice in whole["choices"]]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all("usage" not in chunk for chunk in chunks)
    *_, last = events(http.post(PATH, json=body(stream=True, stream_options={"include_usage": True}, **fields)))
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


def test_large_replies_are_whole(connect: Callable[..., httpx.Client], pretended: Any) -> None:
    pretended.info = type(pretended.info)(vocab_size=1024, context_length=20_000)
    prompt = (np.arange(9000) % 1000).tolist()
    (choice,) = send(connect(), prompt=prompt, echo=True, logprobs=1)["choices"]
    told = choice["logprobs"]
    assert {name: len(values) for name, values in told.items()} == dict.fromkeys(told, 9001)
    expected = np.minimum(0.01 * np.array(prompt[:-1]) + 0.1 * np.array(prompt[1:]) - 4, 0)
    np.testing.assert_allclose(told["token_logprobs"][1:-1], expected, rtol=1e-4, atol=1e-5)


def test_errors_come_before_the_first_event(http: httpx.Client, pretended: Any) -> None:
    reply = http.post(PATH, json=body(stream=True, max_tokens=-1))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_max_tokens")
    pretended.error = ZeroDivisionError("a reason")
    reply = http.post(PATH, json=body(stream=True))
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")


def test_values_that_are_not_finite_are_an_error(http: httpx.Client, pretended: Any) -> None:
    pretended.offset = float("nan")
    assert http.post(PATH, json=body(echo=True, logprobs=0)).status_code == 500


def test_answered_completions_are_counted(http: httpx.Client) -> None:
    send(http)
    assert 'mis_requests_total{task="complete"} 1.0' in http.get("/metrics").text


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ({"max_text_characters": 5}, "too_many_tokens"),
        ({"max_request_tokens": 2}, "too_many_tokens"),
        ({"max_items_per_request": 1}, "too_many_items"),
    ],
)
def test_limits_are_the_configured_ones(connect: Callable[..., httpx.Client], limit: dict[str, int], code: str) -> None:
    reply = connect(**limit).post(PATH, json=body(n=2))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
