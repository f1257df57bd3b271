"""What holds for every route of the application: one that is not in the tables here fails."""

import copy
import fnmatch
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from fastapi import FastAPI

from mis_core.config import EngineConfig
from mis_core.process.wire import Ready
from mis_core.tokenization import Tokenizer
from mis_server.settings import ServerConfig
from mis_testing.tokenizer import write_larger_tokenizer
from route_bodies import BODIES, LABEL, PREDICATE, SAME, SHOWING, TEXT, WITHOUT_TEXT, Body, paths, serves
from served_app import served_app

Place = tuple[str | int, ...]

BEYOND = "<|beyond|>"


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return served_app(None, ServerConfig(engine=EngineConfig(model="m")), None)


def test_every_route_is_here(app: FastAPI) -> None:
    assert paths(app, "POST") == BODIES.keys() | SHOWING.keys() | WITHOUT_TEXT


def places(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every text within a body that is tried, and where it is."""
    if value in (TEXT, LABEL):
        yield place, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*place, name))


def changed(body: Body, place: Place, text: str) -> Body:
    body = copy.deepcopy(body)
    within: Any = body
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = text
    return body


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """What a reply says is wrong; those of System One have a form of their own."""
    if "error" in reply.json():
        return reply.json()["error"]
    (fault,) = reply.json()["detail"]
    return {"code": fault["type"], "message": fault["msg"], "param": fault["loc"][1]}


def lines_of(reply: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in reply.content.splitlines()]


@pytest.fixture(scope="module")
def larger(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with one token more than the model has."""
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    path = write_larger_tokenizer(tmp_path_factory.mktemp("larger"), "qwen3", size, BEYOND)
    return Tokenizer.of(EngineConfig(model=str(checkpoint), tokenizer_path=str(path)))


@pytest.mark.parametrize("path", sorted(BODIES.keys() - SAME.keys()))
def test_a_text_with_a_token_that_the_model_lacks_is_refused(
    connected: Any, pretended: Any, tokenizers: Any, larger: Tokenizer, path: str
) -> None:
    pretended.info = Ready(vocab_size=larger.vocabulary.size or 0, context_length=256, **serves(path))
    body, tried = BODIES[path], set()
    with connected(pretended, type(tokenizers)(larger)) as http:
        assert http.post(path, json=body).status_code == 200
        for place, text in places(body):
            wrong = changed(body, place, BEYOND if text == LABEL else f"{text} {BEYOND}")
            reply = http.post(path, json=wrong)
            if place[0] == "states":  # its error is a line among the others
                codes = [line.get("error", {}).get("code") for line in lines_of(reply)]
                assert codes == ["token_id_exceeds_vocab" if row == place[1] else None for row in range(len(codes))]
                tried.add(place[0])
                continue
            error = error_of(reply)
            assert (reply.status_code, error["code"]) == (422, "token_id_exceeds_vocab"), place
            assert error["param"] == place[0]
            if not tried:
                for other in (each for each, same in SAME.items() if same == path):
                    assert error_of(http.post(other, json=wrong)) == error, other
            if place[0] in ("items", "documents", "questions", "prompt", "input") and len(place) > 1:
                assert error["message"].startswith(f"{place[0]}[{json.dumps(place[1])}]")
            tried.add(place[0])
    assert tried >= {name for name, value in body.items() if not isinstance(value, int)}


def test_what_the_tokenizer_does_is_shown_whatever_the_model_has(
    connected: Any, pretended: Any, tokenizers: Any, larger: Tokenizer
) -> None:
    with connected(pretended, type(tokenizers)(larger)) as http:
        reply = http.post("/tokenize", json={"prompt": BEYOND})
    assert reply.json()["tokens"] == [larger.vocabulary.size]


PROBS = {"return_token_logprobs": True}
ITEM = {"on_error": "item"}
UNANSWERABLE = {"type": "choice", "instructions": TEXT, "choices": []}
UNNAMED = {"type": "predicate", "instructions": TEXT}
BOTH: list[Body] = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]

VARIATIONS: dict[str, list[Body]] = {
    "/v1/score": [{}, PROBS, PROBS | ITEM | {"items": ["", "sun " * 300]}, {"return_layout": True}],
    "/v1/rerank": [{}, {"return_documents": True}, {"top_n": 1}, ITEM | {"documents": ["sun", 7]}],
    "/v1/decisions": [
        {},
        ITEM | {"questions": [PREDICATE, UNNAMED, UNANSWERABLE]},
        {"choice_order": "independent"},
    ],
    "/v1/systemone": [{}, {"x_on_error": "item", "questions": {"n": {"type": "noul"}}}, {"x_abstain_below": 0.5}],
    "/v1/systemone/batch": [{}, {"states": ["sun", 7]}, {"x_on_error": "item", "questions": {"n": {"type": "noul"}}}],
    "/v1/completions": [
        each | more for each in BOTH for more in ({}, {"max_tokens": 1}, {"echo": True, "logprobs": 1}, {"logprobs": 0})
    ]
    + [{"max_tokens": 0, "echo": True}],
    "/v1/chat/completions": [
        each | more for each in BOTH for more in ({}, {"labels": None}, {"logprobs": True}, {"max_tokens": 1})
    ],
    "/v1/classify": [{}, {"use_activation": False}],
    "/v1/token_classify": [{}, {"input": [5, 6]}],
    "/tokenize": [{}, {"return_token_strs": True}],
    "/detokenize": [{}],
}
"""What is asked at a route that takes a body, by changes of the body."""

NOT_JSON = {"/metrics"}

NULLS: dict[str, dict[str, str]] = {
    "/v1/token_classify": {
        f"data[].tokens[].{name}": "where ids were sent; there is no text then" for name in ("text", "start", "end")
    },
    "/v1/score": {
        "token_logprobs": "SGLang's, where they are not asked for; the contract has it",
        "scores[]": "an item that was not scored",
        "token_logprobs[]": "an item that was not scored",
        "layout.placements[].item": "what was computed is the query, no item",
    },
    "/v1/decisions": {"answers[].name": "OpenAI's, of a question without a name"},
    "/v1/completions": {
        "choices[].logprobs": "OpenAI's",
        "choices[].logprobs.token_logprobs[]": "OpenAI's, of a prompt's first token",
        "choices[].logprobs.top_logprobs[]": "OpenAI's, of a prompt's first token",
        "choices[].finish_reason": "OpenAI's, in events before the last of an answer",
        "usage": "OpenAI's, in events before the last where that has the usage",
        "system_fingerprint": "OpenAI's",
    },
    "/v1/chat/completions": {
        "choices[].logprobs": "OpenAI's",
        "choices[].logprobs.refusal": "OpenAI's",
        "choices[].message.refusal": "OpenAI's",
        "choices[].finish_reason": "OpenAI's, in events before the last of an answer",
        "usage": "OpenAI's, in events before the last where that has the usage",
        "system_fingerprint": "OpenAI's",
    },
    "/tokenize": {"token_strs": "vLLM's, where they are not asked for"},
    "/v1/models": {
        "data[].parent": "vLLM's, of a model that is no adapter",
        "data[].max_model_len": "vLLM's; not known before the engine is ready",
    },
    "/v1/models/{model_id:path}": {
        "parent": "vLLM's, of a model that is no adapter",
        "max_model_len": "vLLM's; not known before the engine is ready",
    },
    "/model_info": {
        "preferred_sampling_params": "SGLang's",
        "context_length": "not known before the engine is ready",
        "vocab_size": "not known before the engine is ready",
    },
    "/server_info": {"settings.*": "an option without a value"},
    "/get_server_info": {"*": "an option without a value"},
}
"""Where replies may have null, and why: whose shape has it there, or what it says. Elsewhere, a field is left out."""


def nulls(value: Any, place: str = "") -> Iterator[str]:
    """Where a reply has null."""
    if value is None:
        yield place
    for name, each in value.items() if isinstance(value, dict) else ():
        yield from nulls(each, f"{place}.{name}".removeprefix("."))
    for each in value if isinstance(value, list) else ():
        yield from nulls(each, f"{place}[]")


def replies(http: httpx.Client, path: str, method: str) -> Iterator[Any]:
    """Everything that a route answers with, events one by one."""
    if method == "GET":
        yield http.get(path.replace("{model_id:path}", "some/model")).json()
        return
    for change in VARIATIONS.get(SAME.get(path, path), [{}]):
        reply = http.post(path, json=BODIES.get(path, SHOWING.get(path, {})) | change)
        assert reply.status_code == 200, reply.text
        if reply.headers["content-type"] == "application/x-ndjson":
            yield from lines_of(reply)
            continue
        if not change.get("stream"):
            yield reply.json()
            continue
        for line in reply.text.split("\n\n")[:-2]:
            yield json.loads(line.removeprefix("data: "))


@pytest.fixture
def every_null(app: FastAPI, connected: Any, pretended: Any, tokenizers: Any) -> dict[str, set[str]]:
    """Where the replies of each route have null, before the engine is ready, too."""
    language_model = pretended.info
    pretended.placements = np.array([[0, 0, 0, -1, 3, 0], [0, 0, 3, 0, 2, 3]], np.int32)
    found: dict[str, set[str]] = {}
    with connected(pretended, tokenizers) as http:
        for method in ("POST", "GET"):
            for path in sorted(paths(app, method) - NOT_JSON):
                if path.startswith(("/playground", "/openapi")):
                    continue
                here = found.setdefault(SAME.get(path, path), set())
                for info in [msgspec.structs.replace(language_model, **serves(path))] + [None] * (method == "GET"):
                    pretended.info = info
                    here.update(place for reply in replies(http, path, method) for place in nulls(reply))
    return found


def is_one_of(place: str, wanted: Iterable[str]) -> bool:
    # `[]` is a pattern of its own otherwise.
    return any(fnmatch.fnmatchcase(place.replace("[]", "/"), each.replace("[]", "/")) for each in wanted)


def test_a_reply_has_null_only_where_the_api_it_follows_has_it(every_null: dict[str, set[str]]) -> None:
    for path, found in every_null.items():
        allowed = NULLS.get(path, {})
        assert [place for place in sorted(found) if not is_one_of(place, allowed)] == [], path
        # What is asked shows every null that is allowed.
        assert [each for each in allowed if not any(is_one_of(place, [each]) for place in found)] == [], path
    assert every_null.keys() >= NULLS.keys() | VARIATIONS.keys()
