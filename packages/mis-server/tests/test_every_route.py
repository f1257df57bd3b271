"""What holds for every route of the application: one that is not in the tables here fails."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from mis_core.config import EngineConfig
from mis_core.process.wire import Ready
from mis_core.tokenization import Tokenizer
from mis_server.app import create_app
from mis_server.settings import ServerConfig
from mis_testing.tokenizer import write_larger_tokenizer

Body = dict[str, Any]
Place = tuple[str | int, ...]

TEXT, LABEL = "rain in the plains", "yes"  # each is tried apart; all other texts are words of the contract
BEYOND = "<|beyond|>"
PREDICATE = {"type": "predicate", "name": "n", "instructions": TEXT}
CHOICE = {"type": "choice", "instructions": TEXT, "choices": [{"value": TEXT, "description": TEXT}, {"value": "sun"}]}
LEVELS = {"type": "score", "instructions": TEXT, "levels": [{"label": TEXT, "description": TEXT}, {"label": "cross"}]}

SCORE: Body = {"query": TEXT, "items": [TEXT, TEXT], "labels": [LABEL, TEXT]}
RERANK: Body = {"query": TEXT, "documents": [TEXT, {"text": TEXT}], "instruction": TEXT}
DECISION: Body = {"input": TEXT, "questions": [PREDICATE, CHOICE, LEVELS]}
COMPLETION: Body = {"prompt": [TEXT, TEXT], "max_tokens": 2}
CHAT: Body = {"messages": [{"role": "user", "content": TEXT}], "labels": [LABEL, "no"], "max_tokens": 2}
CLASSIFY: Body = {"input": [TEXT, TEXT]}

BODIES: dict[str, Body] = {
    "/v1/score": SCORE,
    "/score": SCORE,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": RERANK,
    "/v1/decisions": DECISION,
    "/decisions": DECISION,
    "/v1/completions": COMPLETION,
    "/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/classify": CLASSIFY,
    "/classify": CLASSIFY,
}
"""A body for each route that computes something of texts."""

SHOWING = {"/tokenize": {"prompt": TEXT}, "/detokenize": {"tokens": [5]}}
"""Routes that show what the tokenizer does, whatever model it is for."""

WITHOUT_TEXT = {"/flush_cache", "/start_profile", "/stop_profile"}


def paths(app: FastAPI, method: str) -> set[str]:
    """The paths of all routes, those too that are not in the OpenAPI document."""
    found: set[str] = set()
    for context in iter_route_contexts(app.routes):
        if method in (getattr(context, "methods", None) or ()):
            found.add(cast(Any, context).path)
    return found


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(cast(Any, None), ServerConfig(engine=EngineConfig(model="m")), cast(Any, None))


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


def serves(path: str) -> dict[str, Any]:
    """What is served at a path: a model with a classification head where that is needed."""
    return {"head_labels": ("no", "yes")} if path.endswith("classify") else {}


@pytest.fixture(scope="module")
def larger(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with one token more than the model has."""
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    path = write_larger_tokenizer(tmp_path_factory.mktemp("larger"), "qwen3", size, BEYOND)
    return Tokenizer.of(EngineConfig(model=str(checkpoint), tokenizer_path=str(path)))


@pytest.mark.parametrize("path", BODIES)
def test_a_text_with_a_token_that_the_model_lacks_is_refused(
    connected: Any, pretended: Any, tokenizers: Any, larger: Tokenizer, path: str
) -> None:
    pretended.info = Ready(vocab_size=larger.vocabulary.size or 0, context_length=256, **serves(path))
    body, tried = BODIES[path], set()
    with connected(pretended, type(tokenizers)(larger)) as http:
        assert http.post(path, json=body).status_code == 200
        for place, text in places(body):
            reply = http.post(path, json=changed(body, place, BEYOND if text == LABEL else f"{text} {BEYOND}"))
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (422, "token_id_exceeds_vocab"), place
            assert error["param"] == place[0]
            if place[0] in ("items", "documents", "questions", "prompt", "input") and len(place) > 1:
                assert error["message"].startswith(f"{place[0]}[{place[1]}]")
            tried.add(place[0])
    assert tried >= {name for name, value in body.items() if not isinstance(value, int)}


def test_what_the_tokenizer_does_is_shown_whatever_the_model_has(
    connected: Any, pretended: Any, tokenizers: Any, larger: Tokenizer
) -> None:
    with connected(pretended, type(tokenizers)(larger)) as http:
        reply = http.post("/tokenize", json={"prompt": BEYOND})
    assert reply.json()["tokens"] == [larger.vocabulary.size]
