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
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.testclient import TestClient

from mis_core.config import EngineConfig
from mis_core.process.client import Reader
from mis_core.process.wire import Ready
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, ScoreRequest
from mis_server.errors import ERRORS
from mis_server.settings import ServerConfig
from served_app import served_app


class Answering:
    """An engine that answers everything, and holds requests to what the engine relies on."""

    ready = True
    in_flight = restarts = 0

    def __init__(self, head_labels: tuple[str, ...] = ()) -> None:
        self.info = Ready(vocab_size=1024, context_length=256, head_labels=head_labels)

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

    async def generate(self, request: GenerateRequest, reader: Reader) -> None:
        assert 0 < len(request.prompt) <= 256 - request.max_new_tokens
        assert request.prompt.dtype == np.int32
        assert ((request.prompt >= 0) & (request.prompt < 1024)).all()
        assert request.sampling.keys.shape == (1, 2)
        values = np.zeros(request.top_tokens, np.float32)
        for number in range(1, request.max_new_tokens + 1):
            reason = "length" if number == request.max_new_tokens else None
            if not reader(NewToken(number, -0.5, values.astype(np.int32), values, reason)):
                return

    async def operate(self, action: str, argument: str | None = None) -> dict[str, float]:
        return {"freed_pages": 0} if action == "flush_cache" else {}


CONFIG = ServerConfig(
    engine=EngineConfig(model="m"), max_items_per_request=50, max_labels_per_request=20, allowed_hosts="testserver"
)


@pytest.fixture(scope="module", name="app")
def _app(tokenizers: Any) -> Any:
    return served_app(Answering(), CONFIG, tokenizers)


@pytest.fixture(scope="module")
def with_head(tokenizers: Any) -> Any:
    """An application of a model with a classification head."""
    return served_app(Answering(head_labels=("no", "yes")), CONFIG, tokenizers)


# A request of the right form may still be wrong: an id above the vocabulary, labels given twice.
UNDECIDED = [positive_data_acceptance]


EXAMPLES = pytest.mark.parametrize("examples", [5, pytest.param(15, marks=pytest.mark.full)])


@EXAMPLES
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_of_the_openapi_document_keeps_its_word(app: Any, mode: GenerationMode, examples: int) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {"/v1/score", "/v1/rerank", "/v1/decisions", "/v1/chat/completions", "/v1/completions", "/metrics"} <= {
        operation.path for operation in operations
    }
    for operation in operations:
        try_out(operation.as_strategy(generation_mode=mode), examples)


@EXAMPLES
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/rerank"])
def test_so_do_those_of_a_classification_head(with_head: Any, path: str, mode: GenerationMode, examples: int) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", with_head)
    try_out(schema[path]["POST"].as_strategy(generation_mode=mode), examples)


def try_out(cases: st.SearchStrategy[Any], examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases)
    def run(case: Any) -> None:
        response = case.call()
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            check_envelope(response.status_code, response.json())
        assert response.headers["x-request-id"]
        # What is wrong with an item may then be its own error in a reply of 200.
        by_item = isinstance(case.body, dict) and case.body.get("on_error") == "item"
        case.validate_response(response, excluded_checks=[*UNDECIDED, *[negative_data_rejection] * by_item])

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
        "max_tokens": mostly(st.integers(1, 40)),
        "max_completion_tokens": mostly(st.integers(1, 40)),
        "n": mostly(st.integers(1, 4)),
        "logprobs": mostly(st.booleans()),
        "top_logprobs": mostly(st.integers(0, 20)),
        "labels": mostly(st.lists(st.sampled_from(["a", "b", " yes", "no way", ""]), max_size=25)),
        "label_token_ids": mostly(tokens),
        "logit_bias": mostly(st.dictionaries(st.text(max_size=3), st.floats(), max_size=3)),
        "stop": mostly(texts, st.lists(texts, max_size=3)),
        "stop_token_ids": mostly(tokens),
        "ignore_eos": mostly(st.booleans()),
        "top_k": mostly(st.integers(-2, 9)),
        "min_p": mostly(st.floats(0, 1)),
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
        "max_tokens": mostly(st.integers(0, 1), st.integers(2, 40)),
        "echo": mostly(st.booleans()),
        "logprobs": mostly(st.integers(0, 20)),
        "n": mostly(st.integers(1, 4)),
        "best_of": mostly(st.integers(1, 4)),
        "logit_bias": mostly(st.dictionaries(st.text(max_size=3), st.floats(), max_size=3)),
        "stop": mostly(texts, st.lists(texts, max_size=3)),
        "stop_token_ids": mostly(tokens),
        "ignore_eos": mostly(st.booleans()),
        "top_k": mostly(st.integers(-2, 9)),
        "min_p": mostly(st.floats(0, 1)),
        "seed": anything,
        "temperature": mostly(st.floats()),
        "top_p": mostly(st.floats(0, 1)),
        "model": mostly(st.just("m")),
        "frequency_penalty": mostly(st.floats(-2, 2)),
        "presence_penalty": mostly(st.floats(-2, 2)),
        "stream": mostly(st.booleans()),
        "stream_options": mostly(st.just({"include_usage": True})),
        "cache_salt": mostly(texts),
        "add_special_tokens": mostly(st.booleans()),
        "suffix": anything,
        "user": anything,
        "promt": anything,
    },
)
documents = mostly(texts, st.fixed_dictionaries({"text": mostly(texts)}))
reranks = st.fixed_dictionaries(
    {},
    optional={
        "query": mostly(texts),
        "documents": mostly(st.lists(documents, max_size=60)),
        "top_n": mostly(st.integers(1, 60)),
        "return_documents": mostly(st.booleans()),
        "max_tokens_per_doc": mostly(st.integers(1, 20)),
        "instruction": mostly(texts),
        "model": mostly(st.just("m")),
        "cache_salt": mostly(texts),
        "on_error": mostly(st.sampled_from(["request", "item"])),
        "truncation": mostly(st.booleans()),
        "max_chunks_per_doc": mostly(ids),
        "priority": mostly(ids),
        "rank_fields": mostly(st.just(["text"])),
        "user": anything,
        "document": anything,
    },
)
classifications = st.fixed_dictionaries(
    {},
    optional={
        "input": mostly(texts, tokens, st.lists(texts, max_size=60), st.lists(tokens, max_size=60)),
        "use_activation": mostly(st.booleans()),
        "activation": mostly(st.booleans()),
        "softmax": mostly(st.booleans()),
        "add_special_tokens": mostly(st.booleans()),
        "model": mostly(st.just("m")),
        "cache_salt": mostly(texts),
        "priority": mostly(ids),
        "request_id": mostly(texts),
        "user": mostly(texts),
        "messages": anything,
        "inputs": anything,
    },
)
contents = mostly(
    texts,
    st.lists(
        mostly(
            st.fixed_dictionaries({"type": st.just("input_text"), "text": mostly(texts)}),
            st.fixed_dictionaries({"type": st.just("input_json"), "data": mostly(st.dictionaries(texts, anything))}),
            st.fixed_dictionaries({"type": st.just("input_image"), "image_url": anything}),
        ),
        max_size=3,
    ),
)
roles = mostly(st.sampled_from(["system", "developer", "user", "assistant"]))
options = {"description": mostly(texts)}
choices = st.fixed_dictionaries({"value": mostly(texts, st.booleans())}, optional=options)
levels = st.fixed_dictionaries({"label": mostly(texts)}, optional=options)
named = {"instructions": contents, "name": mostly(texts)}
questions = mostly(
    st.fixed_dictionaries({"type": st.just("predicate"), "instructions": contents}, optional={"name": mostly(texts)}),
    st.fixed_dictionaries({"type": st.just("choice"), "choices": mostly(st.lists(choices, max_size=30))} | named),
    st.fixed_dictionaries({"type": st.just("score"), "levels": mostly(st.lists(levels, max_size=11))} | named),
)
messages = st.fixed_dictionaries({"role": roles, "content": contents}, optional={"type": mostly(st.just("message"))})
decisions = st.fixed_dictionaries(
    {},
    optional={
        "input": mostly(texts, st.lists(messages, max_size=4)),
        "questions": mostly(st.lists(questions, max_size=6)),
        "choice_order": mostly(st.sampled_from(["given", "independent"])),
        "on_error": mostly(st.sampled_from(["request", "item"])),
        "model": mostly(st.just("m")),
        "cache_salt": mostly(texts),
        "prompt_cache_key": mostly(texts),
        "prompt_cache_options": mostly(st.just({})),
        "safety_identifier": mostly(texts),
        "temperature": anything,
    },
)
places = st.none() | st.integers(0, 12)  # of the one field that is changed in something right
Check = Callable[[bytes], object]
CONTRACT_ERRORS = {400, 404, 413, 415, 422}


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=bodies, valid=st.booleans())
def test_any_body_gets_scores_or_the_envelope(
    app: Any, check_score_reply: Check, body: dict[str, Any], valid: bool
) -> None:
    if valid:  # around something right, so that the later checks are reached too
        body = {"query": [1, 2], "items": [[3], []], "label_token_ids": [4]} | dict(list(body.items())[:1])
    check(app, body_bytes(body), "application/json", check_score_reply)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=chats, valid=st.booleans())
def test_any_chat_gets_an_answer_or_the_envelope(app: Any, body: dict[str, Any], valid: bool) -> None:
    if valid:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1} | dict(list(body.items())[:1])
    check_choices(app, "/v1/chat/completions", body)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=completions, place=places)
def test_any_completion_gets_an_answer_or_the_envelope(app: Any, body: dict[str, Any], place: int | None) -> None:
    if place is not None:
        body = {"prompt": [1, 2], "max_tokens": 1, "echo": True, "logprobs": 2} | dict(
            list(body.items())[place : place + 1]
        )
    check_choices(app, "/v1/completions", body)


@pytest.mark.parametrize("name", ["app", "with_head"])
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=reranks, place=places)
def test_any_rerank_gets_an_order_or_the_envelope(
    request: pytest.FixtureRequest, name: str, body: dict[str, Any], place: int | None
) -> None:
    if place is not None:
        body = {"query": "a", "documents": ["b", "", "c d"]} | dict(list(body.items())[place : place + 1])
    reply = answer(request.getfixturevalue(name), "/v1/rerank", body)
    if reply is not None:
        scores = [each["relevance_score"] for each in reply["results"]]
        assert scores == sorted(scores, reverse=True)
        failed = [each["index"] for each in reply.get("errors", [])]
        assert len(scores) == min(len(body["documents"]) - len(failed), body.get("top_n") or len(body["documents"]))
        assert len({each["index"] for each in reply["results"]} | set(failed)) == len(scores) + len(failed)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=classifications, place=places)
def test_any_classification_gets_labels_or_the_envelope(
    with_head: Any, body: dict[str, Any], place: int | None
) -> None:
    if place is not None:
        body = {"input": ["a", "b c"]} | dict(list(body.items())[place : place + 1])
    reply = answer(with_head, "/v1/classify", body)
    if reply is not None:
        assert [each["index"] for each in reply["data"]] == list(range(len(reply["data"])))
        assert {(each["label"], each["num_classes"], len(each["probs"])) for each in reply["data"]} == {("no", 2, 2)}


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=decisions, place=places)
def test_any_decision_gets_answers_or_the_envelope(app: Any, body: dict[str, Any], place: int | None) -> None:
    if place is not None:
        asked = {"type": "choice", "instructions": "a", "choices": [{"value": "b"}, {"value": True}]}
        body = {"input": "a", "questions": [asked]} | dict(list(body.items())[place : place + 1])
    reply = answer(app, "/v1/decisions", body)
    assert reply is None or len(reply["answers"]) == len(body["questions"])


def check_choices(app: Any, path: str, body: dict[str, Any]) -> None:
    reply = answer(app, path, body)
    assert reply is None or reply["choices"]


def answer(app: Any, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a reply, None of an error or of events, which are looked at here."""
    kind = {"content-type": "application/json"}
    response = TestClient(app).post(path, content=body_bytes(body), headers=kind)
    if response.status_code != 200:
        assert response.status_code in CONTRACT_ERRORS, response.text
        check_envelope(response.status_code, response.json())
        return None
    if response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        return None
    return response.json()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
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
