"""Nothing that a client can send makes the server fail or answer in another form.

Schemathesis makes requests from the OpenAPI document, valid and not. Hypothesis makes bodies from their declarations,
and some by hand, which know what a declaration does not say.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.testclient import TestClient

from declared_bodies import Values, anything, bodies, mostly
from field_tables import DECLARED
from mis_core.config import EngineConfig
from mis_core.process.client import Reader
from mis_core.process.wire import Ready
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, ScoreRequest
from mis_server.errors import ERRORS
from mis_server.settings import ServerConfig
from route_bodies import BODIES, SHOWING, serves
from served_app import served_app


class Answering:
    """An engine that answers everything, and holds requests to what the engine relies on."""

    ready = True
    in_flight = restarts = 0

    def __init__(self, **served: Any) -> None:
        self.info = Ready(vocab_size=1024, context_length=256, **served)
        self.statistics: dict[str, float] = {}

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
    return served_app(Answering(**serves("/v1/classify")), CONFIG, tokenizers)


@pytest.fixture(scope="module")
def of_tokens(tokenizers: Any) -> Any:
    """An application of a model with a head that labels tokens."""
    return served_app(Answering(**serves("/v1/token_classify")), CONFIG, tokenizers)


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


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_a_streams_events_are_what_the_document_says(app: Any, route: str) -> None:
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[route]["POST"]
    case = operation.Case(body=GOOD[route] | {"stream": True, "max_tokens": 3}, media_type="application/json")
    response = case.call()
    assert response.headers["content-type"][0].startswith("text/event-stream")
    case.validate_response(response)


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
        by_item = isinstance(case.body, dict) and "item" in (case.body.get("on_error"), case.body.get("x_on_error"))
        by_item |= case.path == "/v1/systemone/batch"
        case.validate_response(response, excluded_checks=[*UNDECIDED, *[negative_data_rejection] * by_item])

    with contextlib.suppress(Unsatisfiable):  # a GET without parameters cannot be wrong
        run()


def near(likely: Values, *others: Values) -> Values:
    return mostly(st.one_of(likely, *others), anything, times=30)


def some(element: Values, most: int) -> Values:
    return st.lists(element, min_size=1, max_size=most)


texts = st.text(min_size=1, max_size=30)
ids = st.integers(0, 1023) | st.sampled_from([-1, 1024, 2**31, 2**63, 2**64, -(2**63)])
tokens = some(st.integers(0, 1023), 12)
TEXTS = {"query": near(texts), "items": near(some(st.text(max_size=30), 60), texts)}
IDS = {
    "query": near(tokens),
    "items": near(some(tokens, 60), some(tokens, 60), some(some(ids, 4), 4)),
    "label_token_ids": near(tokens, some(tokens, 6)),
}
parts = st.fixed_dictionaries({"type": near(st.just("text")), "text": near(texts)})
message = st.fixed_dictionaries(
    {"role": near(st.sampled_from(["system", "developer", "user", "assistant", "tool"])),
     "content": near(texts, some(parts, 3))},
    optional={"name": near(texts)},
)  # fmt: skip
CHAT = {
    "messages": near(some(message, 5)),
    "chat_template_kwargs": near(st.just({"enable_thinking": False})),
}
contents = near(
    texts,
    some(
        near(
            st.fixed_dictionaries({"type": st.just("input_text"), "text": near(texts)}),
            st.fixed_dictionaries({"type": st.just("input_json"), "data": near(st.dictionaries(texts, anything))}),
        ),
        3,
    ),
    some(st.fixed_dictionaries({"type": st.just("input_image"), "image_url": anything}), 1),
)
options = {"description": near(texts)}
choices = st.fixed_dictionaries({"value": near(texts, st.booleans())}, optional=options)
levels = st.fixed_dictionaries({"label": near(texts)}, optional=options)
named = {"instructions": contents, "name": near(texts)}
question = near(
    st.fixed_dictionaries({"type": st.just("predicate"), "instructions": contents}, optional={"name": near(texts)}),
    st.fixed_dictionaries({"type": st.just("choice"), "choices": near(some(choices, 30))} | named),
    st.fixed_dictionaries({"type": st.just("score"), "levels": near(some(levels, 11))} | named),
)
entry = st.fixed_dictionaries(
    {"role": near(st.sampled_from(["system", "developer", "user", "assistant"])), "content": contents},
    optional={"type": near(st.just("message"))},
)
DECISION = {"input": near(texts, some(entry, 4)), "questions": near(some(question, 6))}

GOOD = BODIES | SHOWING
fuzz = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
Check = Callable[[bytes], object]
CONTRACT_ERRORS = {400, 404, 413, 415, 422}


@pytest.mark.parametrize("route", DECLARED)
def test_any_declared_body_gets_its_reply_or_the_envelope(
    app: Any, with_head: Any, of_tokens: Any, check_score_reply: Check, route: str
) -> None:
    with_heads = {"/v1/classify": [with_head], "/v1/token_classify": [of_tokens], "/v1/rerank": [app, with_head]}
    apps = with_heads.get(route, [app])
    fields = [len(declared.__struct_fields__) for declared in DECLARED.values()]

    @settings(fuzz, max_examples=round(400 * len(DECLARED[route].__struct_fields__) / sum(fields)))
    @given(served=st.sampled_from(apps), body=bodies(DECLARED[route], GOOD[route]))
    def run(served: Any, body: dict[str, Any]) -> None:
        check(served, route, body, check_score_reply)

    run()


@pytest.mark.parametrize(
    ("route", "good", "by_hand", "examples"),
    [
        ("/v1/score", GOOD["/v1/score"], TEXTS, 50),
        ("/v1/score", {"query": [1, 2], "items": [[3], []], "label_token_ids": [4]}, IDS, 50),
        ("/v1/chat/completions", GOOD["/v1/chat/completions"], CHAT, 100),
        ("/v1/decisions", GOOD["/v1/decisions"], DECISION, 100),
    ],
    ids=["texts", "ids", "chat", "decisions"],
)
def test_so_does_any_body_whose_members_are_made_by_hand(
    app: Any, check_score_reply: Check, route: str, good: dict[str, Any], by_hand: dict[str, Values], examples: int
) -> None:
    @settings(fuzz, max_examples=examples)
    @given(body=bodies(DECLARED[route], good, by_hand))
    def run(body: dict[str, Any]) -> None:
        check(app, route, body, check_score_reply)

    run()


def check(app: Any, route: str, body: dict[str, Any], check_score_reply: Check) -> None:
    """Fails unless a route answers with what was asked for, or with an error of the contract."""
    response = post(app, route, json.dumps(body).encode("utf-8", "surrogatepass"))  # NaN and lone surrogates included
    if response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
    elif response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson":
        lines = [json.loads(line) for line in response.text.removesuffix("\n").split("\n")]
        REPLIES[route](body, {"lines": lines})
    elif response.status_code == 200:
        if route == "/v1/score":
            check_score_reply(response.content)
        REPLIES[route](body, response.json())


Reply = dict[str, Any]


def check_scores(body: dict[str, Any], reply: Reply) -> None:
    assert len(reply["scores"]) == (1 if isinstance(body["items"], str) else len(body["items"]))


def check_order(body: dict[str, Any], reply: Reply) -> None:
    scores = [each["relevance_score"] for each in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    failed = [each["index"] for each in reply.get("errors", [])]
    assert len(scores) == min(len(body["documents"]) - len(failed), body.get("top_n") or len(body["documents"]))
    assert len({each["index"] for each in reply["results"]} | set(failed)) == len(scores) + len(failed)


def check_labels(body: dict[str, Any], reply: Reply) -> None:
    assert [each["index"] for each in reply["data"]] == list(range(prompts(body["input"])))
    assert {(each["label"], each["num_classes"], len(each["probs"])) for each in reply["data"]} == {("no", 2, 2)}


def check_token_labels(body: dict[str, Any], reply: Reply) -> None:
    assert [each["index"] for each in reply["data"]] == list(range(prompts(body["input"])))
    tokens = [token for each in reply["data"] for token in each["tokens"]]
    assert len(tokens) == reply["usage"]["prompt_tokens"]
    assert {(token["label"], len(token["probs"])) for token in tokens} == {("no", 2)}


def check_answers(body: dict[str, Any], reply: Reply) -> None:
    assert len(reply["answers"]) == len(body["questions"])


def check_ids(body: dict[str, Any], reply: Reply) -> None:
    assert reply["answers"].keys() | reply.get("x_errors", {}).keys() == body["questions"].keys()


def check_lines(body: dict[str, Any], reply: Reply) -> None:
    assert len(reply["lines"]) == len(body["states"])
    for line in reply["lines"]:
        if "error" in line:
            assert {*line, *line["error"]} == {"error", "code", "message"}
            assert ERRORS[line["error"]["code"]][0] in CONTRACT_ERRORS
        else:
            check_ids(body, line)


def check_choices(body: dict[str, Any], reply: Reply) -> None:
    assert len(reply["choices"]) == prompts(body.get("prompt", "")) * (body.get("n") or 1)


def check_tokens(body: dict[str, Any], reply: Reply) -> None:
    assert reply["count"] == len(reply["tokens"])
    assert not body.get("return_token_strs") or len(reply["token_strs"]) == reply["count"]


def check_text(body: dict[str, Any], reply: Reply) -> None:
    assert isinstance(reply["prompt"], str)


def prompts(value: Any) -> int:
    """How many a text, or a list of token ids, or a list of either is."""
    return 1 if isinstance(value, str) or isinstance(value[0], int) else len(value)


REPLIES: dict[str, Callable[[dict[str, Any], Reply], None]] = {
    "/v1/score": check_scores,
    "/v1/rerank": check_order,
    "/v1/decisions": check_answers,
    "/v1/systemone": check_ids,
    "/v1/systemone/batch": check_lines,
    "/v1/classify": check_labels,
    "/v1/token_classify": check_token_labels,
    "/v1/completions": check_choices,
    "/v1/chat/completions": check_choices,
    "/tokenize": check_tokens,
    "/detokenize": check_text,
}


@settings(fuzz, max_examples=100)
@given(content=st.binary(max_size=200) | st.text().map(str.encode), kind=st.sampled_from(["application/json", "x", ""]))
def test_any_bytes_get_the_envelope(app: Any, check_score_reply: Check, content: bytes, kind: str) -> None:
    response = post(app, "/v1/score", content, kind)
    assert response.status_code != 200 or check_score_reply(response.content)


def post(app: Any, route: str, content: bytes, kind: str = "application/json") -> httpx.Response:
    """Return the response, whose errors are those of the contract."""
    response = TestClient(app).post(route, content=content, headers={"content-type": kind})
    if response.status_code != 200:
        assert response.status_code in CONTRACT_ERRORS, response.text
        check_envelope(response.status_code, response.json())
    return response


def check_envelope(status: int, body: Any) -> None:
    """Check an error: the envelope, or the form of System One."""
    if set(body) == {"detail"}:
        check_detail(status, body["detail"])
        return
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert ERRORS[error["code"]] == (status, error["type"])
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) <= 500
    assert error["param"] is None or isinstance(error["param"], str)


def check_detail(status: int, detail: Any) -> None:
    if isinstance(detail, dict):
        assert set(detail) == {"error_type", "message", "code"}
        assert ERRORS[detail["code"]][0] == status
        return
    (fault,) = detail
    assert (status, set(fault), fault["loc"][0]) == (422, {"loc", "msg", "type"}, "body")
    assert fault["type"] in ERRORS
    assert 0 < len(fault["msg"]) <= 500
