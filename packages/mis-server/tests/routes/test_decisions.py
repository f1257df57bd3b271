"""`POST /v1/decisions`: the official client, and what it gets for what it sends."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
from scipy.special import softmax

from mis_core import Engine
from mis_core.process.wire import Ready
from mis_core.tokenization import Tokenizer
from mis_testing.server import RunningServer

PREDICATE: Any = {"type": "predicate", "name": "animals", "instructions": "It is about animals."}
CHOICE: Any = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which?"}, {"type": "input_json", "data": {"a": 1}}],
    "choices": [{"value": "cat", "description": "a pet"}, {"value": True}, {"value": "true"}],
}
SCORE: Any = {
    "type": "score",
    "name": "wet",
    "instructions": "How wet?",
    "levels": [{"label": "dry"}, {"label": "wet"}],
}
QUESTIONS: Any = [PREDICATE, CHOICE, SCORE]
EVERYTHING: Any = {
    "input": [
        {"role": "system", "content": "Be fair."},
        {"role": "developer", "content": [{"type": "input_text", "text": "Judge."}], "type": "message"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "A cat.", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_json", "data": [{"wet": False}]},
            ],
        },
        {
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Well."}, {"type": "refusal", "refusal": "No."}],
        },
        {"type": "function_call", "call_id": "f", "name": "look", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "f", "output": [{"type": "input_text", "text": "Dry."}]},
        {"type": "custom_tool_call", "call_id": "t", "name": "sh", "input": "ls", "namespace": "n", "id": "1"},
        {"type": "custom_tool_call_output", "call_id": "t", "output": "none"},
    ],
    "questions": QUESTIONS,
    "prompt_cache_key": "me",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "safety_identifier": "someone",
}


@pytest.fixture(autouse=True)
def roomy(pretended: Any) -> None:
    pretended.info = Ready(vocab_size=1024, context_length=4096)


@pytest.fixture
def client(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    monkeypatch.setenv("NO_PROXY", "*")
    with openai.OpenAI(base_url=str(http.base_url.join("/v1")), api_key="any", max_retries=0) as made:
        yield made


def test_a_reply_has_the_fields_of_the_contract(http: httpx.Client, pretended: Any, tokenizer: Tokenizer) -> None:
    reply = http.post("/v1/decisions", json={"input": "A cat.", "questions": QUESTIONS})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert set(body) == {"id", "object", "created", "model", "answers", "usage"}
    assert (body["object"], body["model"]) == ("decisions", "some/model")
    assert body["id"] == f"decision-{reply.headers['x-request-id']}"
    assert "tokenize;dur=" in reply.headers["server-timing"]
    (request,) = pretended.requests
    tokens = len(request.query) + len(request.item_tokens) - int((len(request.query) - request.context_lens).sum())
    assert body["usage"] == {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }
    predicate, choice, score = body["answers"]
    assert set(predicate) == {"type", "name", "probability", "label_mass"}
    assert set(choice) == {"type", "name", "choice", "confidence", "probabilities", "label_mass"}
    assert set(score) == {"type", "name", "score", "confidence", "probabilities", "label_mass"}
    assert [answer["name"] for answer in body["answers"]] == ["animals", None, "wet"]
    yes_no = [tokenizer.label_id(word) for word in ("Yes", "No")]
    np.testing.assert_allclose(predicate["probability"], softmax(np.multiply(yes_no, 0.1))[0], rtol=1e-5)
    assert [each["value"] for each in choice["probabilities"]] == ["cat", True, "true"]
    assert choice["choice"] == "true"  # the engine prefers higher ids, and codes rise
    assert [set(each) for each in score["probabilities"]] == [{"label", "value", "probability"}] * 2


@pytest.mark.parametrize("path", ["/decisions", "/v1/decisions"])
def test_all_questions_are_one_request_behind_one_input(http: httpx.Client, pretended: Any, path: str) -> None:
    reply = http.post(path, json={"input": "A cat. " * 50, "questions": [PREDICATE] * 400})
    assert len(reply.json()["answers"]) == 400
    (request,) = pretended.requests
    assert request.num_items == 400
    assert request.context_lens.min() > 100


def test_the_official_client_sends_everything_it_can(client: openai.OpenAI, pretended: Any) -> None:
    decision = client.decisions.create(model="some/model", **EVERYTHING)
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate"
    assert 0 <= predicate.probability <= 1
    assert choice.type == "choice"
    assert [each.value for each in choice.probabilities] == ["cat", True, "true"]
    assert choice.confidence == max(each.probability for each in choice.probabilities)
    assert score.type == "score"
    assert [(each.label, each.value) for each in score.probabilities] == [("dry", 0), ("wet", 1)]
    np.testing.assert_allclose(score.score, score.probabilities[1].probability)
    assert decision.usage.input_tokens_details.cached_tokens == 1
    assert pretended.requests[0].cache_salt


def test_the_official_client_gets_refusals_of_single_questions(client: openai.OpenAI) -> None:
    bad: Any = {"type": "predicate", "name": "image", "instructions": [{"type": "input_image", "image_url": "a"}]}
    options = {"on_error": "item", "choice_order": "independent"}
    decision = client.decisions.create(
        model="some/model", input="A cat.", questions=[CHOICE, bad, SCORE], extra_body=options
    )
    assert [answer.type for answer in decision.answers] == ["choice", "refusal", "score"]
    assert decision.answers[1].name == "image"
    refused: Any = decision.answers[1]
    assert refused.error["code"] == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as caught:
        client.decisions.create(model="some/model", input="A cat.", questions=[CHOICE, bad, SCORE])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "questions[1].instructions[0]")


def test_where_all_questions_are_refused_the_engine_is_not_asked(http: httpx.Client, pretended: Any) -> None:
    reply = http.post("/v1/decisions", json={"input": "A cat.", "questions": [7, {}], "on_error": "item"})
    assert reply.status_code == 200
    assert [answer["type"] for answer in reply.json()["answers"]] == ["refusal", "refusal"]
    assert pretended.requests == []


def test_an_image_is_refused_by_its_place(client: openai.OpenAI) -> None:
    image: Any = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.decisions.create(
            model="some/model", input=[{"role": "user", "content": "a"}, image], questions=[PREDICATE]
        )
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "input[1].content[0]")


def test_limits_are_the_configured_ones(connect: Callable[..., httpx.Client]) -> None:
    body = {"input": "A cat.", "questions": QUESTIONS}
    for limit, code in (
        ({"max_items_per_request": 2}, "too_many_items"),
        ({"max_labels_per_request": 2}, "too_many_labels"),
        ({"max_request_tokens": 20}, "too_many_tokens"),
        ({"max_text_characters": 20}, "too_many_tokens"),
    ):
        reply = connect(**limit).post("/v1/decisions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_the_order_of_options_can_be_the_servers(connect: Callable[..., httpx.Client], pretended: Any) -> None:
    http = connect(engine_options={"choice_order": "reversed"})
    for more, items in (({}, 5), ({"choice_order": "sorted"}, 4), ({"choice_order": None}, 5)):
        assert http.post("/v1/decisions", json={"input": "A cat.", "questions": QUESTIONS} | more).status_code == 200
        assert pretended.requests[-1].num_items == items
    levels = {"type": "score", "criteria": ["dry", "wet"]}
    assert http.post("/v1/systemone", json={"state": "A cat.", "questions": {"q": levels}}).status_code == 200
    assert pretended.requests[-1].num_items == 2


def test_http_and_python_answer_alike(server: RunningServer, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    python = engine.decide(EVERYTHING["input"], QUESTIONS, choice_order="independent")
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="any", max_retries=0) as client:
        options = {"choice_order": "independent"}
        http = client.decisions.create(model=client.models.list().data[0].id, **EVERYTHING, extra_body=options)
    for ours, theirs in zip(python.answers, http.answers, strict=True):
        assert theirs.to_dict() == _as_dict(ours)
    assert http.usage.input_tokens == python.usage.input_tokens


def _as_dict(answer: Any) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(answer))
