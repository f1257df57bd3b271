"""Nothing that a client can send makes the server fail or answer in another form.

Schemathesis makes requests from the OpenAPI document, valid and not; hypothesis makes bodies that know the
fields but not their kinds.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from mis_core.config import EngineConfig
from mis_core.process.wire import Ready
from mis_core.scoring.request import EngineOutput, ScoreRequest
from mis_server.app import create_app
from mis_server.errors import ERRORS
from mis_server.settings import ServerConfig


class Answering:
    """An engine that answers everything, and holds requests to what the engine relies on."""

    ready = True
    info = Ready(vocab_size=1024, context_length=256)
    in_flight = restarts = 0

    async def score(self, request: ScoreRequest) -> EngineOutput:
        assert request.item_starts[-1] == len(request.item_tokens)
        for ids in (request.query, request.item_tokens):
            assert ids.dtype == np.int32
            assert ((ids >= 0) & (ids < 1024)).all()
        assert (request.context_lens + np.diff(request.item_starts) <= 256).all()
        logits = np.zeros((request.num_reads, request.label_ids.shape[1]), np.float32)
        normalisers = np.full(request.num_reads, 5, np.float32) if request.needs_log_sum_exp else None
        values = np.zeros((request.num_reads, request.top_tokens), np.float32)
        output = EngineOutput(logits, normalisers, top_ids=values.astype(np.int32), top_logits=values)
        if request.sampling is None:
            return output
        drawn = np.arange(request.num_items, dtype=np.int32)
        return dataclasses.replace(output, next_ids=drawn, next_logits=drawn.astype(np.float32) / 100)

    async def operate(self, action: str, argument: str | None = None) -> dict[str, float]:
        return {"freed_pages": 0} if action == "flush_cache" else {}


@pytest.fixture(scope="module", name="app")
def _app(tokenizers: Any) -> Any:
    config = ServerConfig(
        engine=EngineConfig(model="m"), max_items_per_request=50, max_labels_per_request=20, allowed_hosts="testserver"
    )
    return create_app(Answering(), config, tokenizers)


# A request of the right form may still be wrong: an id above the vocabulary, labels given twice.
UNDECIDED = [positive_data_acceptance]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_of_the_openapi_document_keeps_its_word(app: Any, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {"/v1/score", "/v1/decisions", "/v1/chat/completions", "/v1/completions", "/tokenize", "/metrics"} <= {
        operation.path for operation in operations
    }
    for operation in operations:
        try_out(operation.as_strategy(generation_mode=mode))


def try_out(cases: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases)
    def run(case: Any) -> None:
        response = case.call()
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            check_envelope(response.status_code, response.json())
        assert response.headers["x-request-id"]
        case.validate_response(response, excluded_checks=UNDECIDED)

    with contextlib.suppress(Unsatisfiable):  # a GET without parameters cannot be wrong
        run()


ids = st.integers(-3, 1100) | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 1023, 1024])
scalars = st.none() | st.booleans() | ids | st.floats() | st.text(max_size=20)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3)
)
texts, tokens = st.text(max_size=30), st.lists(ids, max_size=12)


def mostly(*likely: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*likely, *likely, anything)


bodies = st.fixed_dictionaries(
    {},
    optional={
        "query": mostly(texts, tokens),
        "items": mostly(st.lists(texts, max_size=60), st.lists(tokens, max_size=60), texts),
        "label_token_ids": mostly(tokens, st.lists(tokens, max_size=6)),
        "labels": mostly(st.lists(st.sampled_from(["a", "b", " yes", "no way", ""]), max_size=25)),
        "apply_softmax": mostly(st.booleans()),
        "item_first": mostly(st.booleans()),
        "temperature": mostly(st.floats()),
        "return_token_logprobs": mostly(st.booleans()),
        "model": mostly(st.just("m")),
        "cache_salt": mostly(texts),
        "on_error": mostly(st.sampled_from(["request", "item"])),
        "return_layout": mostly(st.booleans()),
        "queries": anything,
    },
)
parts = st.fixed_dictionaries({"type": mostly(st.just("text")), "text": mostly(texts)})
message = st.fixed_dictionaries(
    {"role": mostly(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))},
    optional={"content": mostly(texts, st.lists(parts, max_size=3)), "name": anything, "tool_calls": anything},
)
chats = st.fixed_dictionaries(
    {},
    optional={
        "messages": mostly(st.lists(message, max_size=5)),
        "max_tokens": mostly(st.just(1)),
        "n": mostly(st.integers(1, 4)),
        "logprobs": mostly(st.booleans()),
        "top_logprobs": mostly(st.integers(0, 20)),
        "labels": mostly(st.lists(st.sampled_from(["a", "b", " yes", "no way", ""]), max_size=25)),
        "label_token_ids": mostly(tokens),
        "logit_bias": mostly(st.dictionaries(st.text(max_size=3), st.floats(), max_size=3)),
        "stop": mostly(texts, st.lists(texts, max_size=3)),
        "seed": anything,
        "temperature": mostly(st.floats()),
        "stream": mostly(st.booleans()),
        "stream_options": mostly(st.just({"include_usage": True})),
        "chat_template_kwargs": mostly(st.just({"enable_thinking": False})),
        "continue_final_message": mostly(st.booleans()),
        "tools": anything,
        "response_format": anything,
        "user": anything,
        "massages": anything,
    },
)
completions = st.fixed_dictionaries(
    {},
    optional={
        "prompt": mostly(texts, tokens, st.lists(texts, max_size=4), st.lists(tokens, max_size=4)),
        "max_tokens": mostly(st.integers(0, 1)),
        "echo": mostly(st.booleans()),
        "logprobs": mostly(st.integers(0, 20)),
        "n": mostly(st.integers(1, 4)),
        "best_of": mostly(st.integers(1, 4)),
        "logit_bias": mostly(st.dictionaries(st.text(max_size=3), st.floats(), max_size=3)),
        "stop": mostly(texts, st.lists(texts, max_size=3)),
        "seed": anything,
        "temperature": mostly(st.floats()),
        "stream": mostly(st.booleans()),
        "stream_options": mostly(st.just({"include_usage": True})),
        "cache_salt": mostly(texts),
        "add_special_tokens": mostly(st.booleans()),
        "suffix": anything,
        "user": anything,
        "promt": anything,
    },
)
Check = Callable[[bytes], object]
CONTRACT_ERRORS = {400, 404, 413, 415, 422}


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=bodies, valid=st.booleans())
def test_any_body_gets_scores_or_the_envelope(
    app: Any, check_score_reply: Check, body: dict[str, Any], valid: bool
) -> None:
    if valid:  # around something right, so that the later checks are reached too
        body = {"query": [1, 2], "items": [[3], []], "label_token_ids": [4]} | dict(list(body.items())[:1])
    check(app, body_bytes(body), "application/json", check_score_reply)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=chats, valid=st.booleans())
def test_any_chat_gets_an_answer_or_the_envelope(app: Any, body: dict[str, Any], valid: bool) -> None:
    if valid:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1} | dict(list(body.items())[:1])
    check_choices(app, "/v1/chat/completions", body)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=completions, valid=st.booleans())
def test_any_completion_gets_an_answer_or_the_envelope(app: Any, body: dict[str, Any], valid: bool) -> None:
    if valid:
        body = {"prompt": [1, 2], "max_tokens": 1, "echo": True, "logprobs": 2} | dict(list(body.items())[:2])
    check_choices(app, "/v1/completions", body)


def check_choices(app: Any, path: str, body: dict[str, Any]) -> None:
    kind = {"content-type": "application/json"}
    response = TestClient(app).post(path, content=body_bytes(body), headers=kind)
    if response.status_code == 200:
        is_stream = response.headers["content-type"].startswith("text/event-stream")
        assert response.text.endswith("data: [DONE]\n\n") if is_stream else response.json()["choices"]
    else:
        assert response.status_code in CONTRACT_ERRORS, response.text
        check_envelope(response.status_code, response.json())


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(content=st.binary(max_size=200) | st.text().map(str.encode), kind=st.sampled_from(["application/json", "x", ""]))
def test_any_bytes_get_the_envelope(app: Any, check_score_reply: Check, content: bytes, kind: str) -> None:
    check(app, content, kind, check_score_reply)


def body_bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")  # NaN and lone surrogates included


def check(app: Any, content: bytes, kind: str, check_score_reply: Check) -> None:
    response = TestClient(app).post("/v1/score", content=content, headers={"content-type": kind})
    if response.status_code == 200:
        check_score_reply(response.content)
    else:
        assert response.status_code in CONTRACT_ERRORS, response.text
        check_envelope(response.status_code, response.json())


def check_envelope(status: int, body: Any) -> None:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert ERRORS[error["code"]] == (status, error["type"])
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) <= 500
    assert error["param"] is None or isinstance(error["param"], str)
