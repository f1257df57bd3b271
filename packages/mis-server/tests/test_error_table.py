"""Every error code over HTTP: a request that causes it, its status, its type, its field."""

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import msgspec
import pytest

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.client import EngineFault
from mis_core.tasks.fields.described import without_effect
from mis_core.tasks.text.bodies import ChatBody
from mis_server.errors import ERRORS
from mis_server.schemas.system_one import PATHS
from route_bodies import serves

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]
Shared = Callable[..., tuple[httpx.Client, Any]]

GONE = object()  # a field to leave out
TEXT = {"query": "some text ", "items": ["a"], "label_token_ids": [7]}
LAYOUT = {"enable_request_layout": True}


@dataclass(frozen=True)
class Cause:
    """What to do to get an error."""

    code: str
    changes: dict[str, Any] = field(default_factory=dict)
    param: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    engine: Exception | None = None
    path: str = "/v1/score"
    method: str = "POST"
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    head_labels: tuple[str, ...] = ()
    only_task: str | None = None
    has_template: bool = True


def field_error(code: str, **changes: Any) -> Cause:
    return Cause(code, changes, param=next(iter(changes)))


def decision_error(code: str, param: str | None = None, **changes: Any) -> Cause:
    """What is wrong with a body of `/v1/decisions`; `GONE` leaves a field out."""
    body = {"input": "A cat.", "questions": [{"type": "predicate", "instructions": "It is wet."}]} | changes
    content = json.dumps({name: value for name, value in body.items() if value is not GONE})
    return Cause(code, param=param or next(iter(changes), None), path="/v1/decisions", content=content.encode())


def rerank_error(code: str, **changes: Any) -> Cause:
    """What is wrong with a body of `/v1/rerank`; `GONE` leaves a field out."""
    body = {"query": "cats", "documents": ["A cat."]} | changes
    content = json.dumps({name: value for name, value in body.items() if value is not GONE})
    return Cause(code, param=next(iter(changes)), path="/v1/rerank", content=content.encode())


def system_one_error(code: str, **changes: Any) -> Cause:
    """What is wrong with a body of `/v1/systemone`; `GONE` leaves a field out."""
    body = {"state": "A cat.", "questions": {"q": {"type": "noul", "instructions": "Is it wet?"}}} | changes
    content = json.dumps({name: value for name, value in body.items() if value is not GONE})
    return Cause(code, param=next(iter(changes)), path="/v1/systemone", content=content.encode())


def batch_error(code: str, **changes: Any) -> Cause:
    """What is wrong with all of a body of `/v1/systemone/batch`; `GONE` leaves a field out."""
    body = {"states": ["A cat."], "questions": {"q": {"type": "noul", "instructions": "Is it wet?"}}} | changes
    content = json.dumps({name: value for name, value in body.items() if value is not GONE})
    return Cause(code, param=next(iter(changes)), path="/v1/systemone/batch", content=content.encode())


IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]
CHOICES = [{"value": str(number)} for number in range(255)]
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


def chat_error(code: str, **changes: Any) -> Cause:
    body = {name: value for name, value in (CHAT | changes).items() if value is not GONE}
    content = json.dumps(body).encode()
    return Cause(code, param=next(iter(changes)), path="/v1/chat/completions", content=content)


def completion_error(code: str, **changes: Any) -> Cause:
    body = {name: value for name, value in ({"prompt": [1], "max_tokens": 1} | changes).items() if value is not GONE}
    return Cause(code, param=next(iter(changes)), path="/v1/completions", content=json.dumps(body).encode())


def classify_error(code: str, **changes: Any) -> Cause:
    content = json.dumps({"input": [1, 2]} | changes).encode()
    return Cause(code, param=next(iter(changes)), path="/v1/classify", content=content, head_labels=("bad", "good"))


BODIES = {
    "/v1/rerank": {"query": "cats", "documents": ["A cat.", "A dog."]},
    "/v1/decisions": {
        "input": "A cat.",
        "questions": [{"type": "choice", "instructions": "?", "choices": CHOICES[:3]}],
    },
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": ["A cat.", "A dog."], "max_tokens": 1},
    "/v1/classify": {"input": ["A cat.", "A dog."]},
    "/v1/token_classify": {"input": ["A cat.", "A dog."]},
}
FAILURES = {
    "deadline_exceeded": RequestError("deadline_exceeded", "Too late."),
    "queue_full": RequestError("queue_full", "Later."),
    "engine_unavailable": EngineUnavailable("restarting"),
    "internal_error": EngineFault("a reason"),
}


def task_error(code: str, path: str, param: str | None = None, **fields: Any) -> Cause:
    """What is wrong with a right body: the model, the server's limits, or the engine."""
    content = json.dumps(BODIES[path]).encode()
    return Cause(code, path=path, param=param, content=content, **serves(path) | fields)


CAUSES = [
    field_error("missing_query", query=GONE),
    field_error("missing_query", query=None),
    field_error("empty_query", query=[]),
    field_error("empty_query", query="", items=["a"]),
    field_error("invalid_query_type", query=7),
    field_error("invalid_query_type", query={"text": "a"}),
    field_error("missing_items", items=GONE),
    field_error("empty_items", items=[]),
    field_error("invalid_items_type", items=7),
    field_error("invalid_items_type", items=[[1], None]),
    field_error("mixed_input_types", items=["text"]),
    field_error("mixed_input_types", items=[[1]], query="text"),
    field_error("missing_label_token_ids", label_token_ids=GONE),
    field_error("empty_label_token_ids", label_token_ids=[]),
    field_error("empty_label_token_ids", label_token_ids=[[1], []]),
    field_error("invalid_label_token_ids_type", label_token_ids="7"),
    field_error("invalid_token_id_type", label_token_ids=[True]),
    field_error("invalid_token_id_type", label_token_ids=[7.0]),
    field_error("invalid_token_id_type", query=[1, 2.0]),
    field_error("invalid_token_id_type", items=[[1], [False]]),
    field_error("negative_token_id", label_token_ids=[-1]),
    field_error("negative_token_id", query=[-1]),
    field_error("negative_token_id", items=[[-5]]),
    field_error("token_id_exceeds_vocab", label_token_ids=[1024]),
    field_error("token_id_exceeds_vocab", query=[2**63]),
    field_error("token_id_exceeds_vocab", items=[[1024]]),
    field_error("label_count_mismatch", label_token_ids=[[1], [2], [3]]),
    field_error("invalid_apply_softmax_type", apply_softmax=1),
    field_error("invalid_item_first_type", item_first="yes"),
    field_error("invalid_return_token_logprobs_type", return_token_logprobs=0),
    field_error("invalid_model_type", model=7),
    field_error("invalid_cache_salt_type", cache_salt=7),
    field_error("invalid_add_special_tokens_type", add_special_tokens="no"),
    field_error("invalid_return_layout_type", return_layout=1),
    field_error("invalid_on_error", on_error="skip"),
    field_error("invalid_on_error", on_error=None),
    field_error("invalid_calibration", calibration="all"),
    Cause("foreign_host", headers={"host": "evil.example:30000"}),
    Cause("foreign_origin", headers={"origin": "https://evil.example"}),
    field_error("invalid_temperature", temperature=0, apply_softmax=True),
    field_error("invalid_temperature", temperature=2.0),
    field_error("invalid_temperature", temperature=True, apply_softmax=True),
    field_error("unknown_parameter", querry="a"),
    field_error("unknown_parameter", text_1="a"),
    field_error("model_not_found", model="other"),
    Cause("invalid_labels_type", {"labels": 7, "label_token_ids": GONE}, "labels"),
    Cause("empty_labels", {"labels": [], "label_token_ids": GONE}, "labels"),
    Cause("conflicting_labels", {"labels": ["yes"]}, "labels"),
    Cause("empty_label", TEXT | {"labels": ["a", ""], "label_token_ids": GONE}, "labels"),
    Cause("unknown_label", {"labels": ["best"], "label_token_ids": GONE}, "labels", head_labels=("bad", "good")),
    Cause("context_length_exceeded", {"items": [[1], [2] * 300]}, "items"),
    Cause("too_many_items", param="items", options={"max_items_per_request": 1}),
    Cause("too_many_labels", param="label_token_ids", options={"max_labels_per_request": 1}),
    Cause("too_many_tokens", param="items", options={"max_request_tokens": 5}),
    Cause("delimiter_in_input", param="items", flags={"multi_item_scoring_delimiter": 5}),
    Cause("invalid_scoring_algorithm", {"scoring_algorithm": "magic"}, "scoring_algorithm", flags=LAYOUT),
    Cause("invalid_mask_impl", {"mask_impl": "magic"}, "mask_impl", flags=LAYOUT),
    Cause(
        "invalid_multi_item_scoring_chunk_size",
        {"multi_item_scoring_chunk_size": -1},
        "multi_item_scoring_chunk_size",
        flags=LAYOUT,
    ),
    rerank_error("missing_query", query=GONE),
    rerank_error("empty_query", query=""),
    rerank_error("invalid_query_type", query=[1]),
    rerank_error("missing_documents", documents=GONE),
    rerank_error("empty_documents", documents=[]),
    rerank_error("invalid_documents", documents="A cat."),
    rerank_error("invalid_documents", documents=["A cat.", {"title": "a"}]),
    rerank_error("invalid_top_n", top_n=0),
    rerank_error("invalid_max_tokens_per_doc", max_tokens_per_doc=2**31),
    rerank_error("invalid_return_documents", return_documents=1),
    rerank_error("invalid_instruction_type", instruction=7),
    rerank_error("invalid_max_chunks_per_doc", max_chunks_per_doc="a"),
    rerank_error("invalid_priority", priority="a"),
    rerank_error("invalid_truncation", truncation=1),
    rerank_error("unsupported_parameter", rank_fields=["title"]),
    rerank_error("unsupported_parameter", relevant_spans={}),
    rerank_error("model_not_found", model="other"),
    rerank_error("invalid_model_type", model=7),
    rerank_error("invalid_cache_salt_type", cache_salt=7),
    rerank_error("invalid_on_error", on_error="ignore"),
    rerank_error("invalid_calibration", calibration=1),
    rerank_error("unknown_parameter", document="A cat."),
    rerank_error("too_many_items", documents=["a"] * 20_001),
    rerank_error("context_length_exceeded", query="cat " * 300),
    decision_error("missing_input", input=GONE),
    decision_error("empty_input", input=[]),
    decision_error("invalid_input", input=7),
    decision_error("missing_questions", questions=GONE),
    decision_error("empty_questions", questions=[]),
    decision_error("invalid_questions", questions="why"),
    decision_error("invalid_choice_order", choice_order="any"),
    decision_error("invalid_on_error", on_error="ignore"),
    decision_error("invalid_prompt_cache_key", prompt_cache_key=7),
    decision_error("invalid_prompt_cache_options", prompt_cache_options=7),
    decision_error("invalid_safety_identifier", safety_identifier=7),
    decision_error(
        "too_few_label_tokens", questions=[{"type": "choice", "instructions": "Which?", "choices": CHOICES}]
    ),
    decision_error("unsupported_parameter", "input[0].content[0]", input=IMAGE),
    decision_error("unknown_parameter", temperature=1),
    decision_error("model_not_found", model="other"),
    decision_error("too_many_items", questions=[{}] * 401),
    decision_error("context_length_exceeded", input="cat " * 300),
    decision_error("context_length_exceeded", questions=[{"type": "predicate", "instructions": "cat " * 300}]),
    decision_error("unsupported_parameter", "input[0].content[0]", input=IMAGE, on_error="item"),
    decision_error("invalid_cache_salt_type", cache_salt=7),
    decision_error("invalid_model_type", model=7),
    classify_error("missing_input", input=None),
    classify_error("empty_input", input=[[1], []]),
    classify_error("invalid_input", input=["a", [1]]),
    classify_error("invalid_token_id_type", input=[1, 2.5]),
    classify_error("token_id_exceeds_vocab", input=[[1], [1024]]),
    classify_error("too_many_items", input=["a"] * 20_001),
    classify_error("context_length_exceeded", input=["cat " * 300]),
    classify_error("invalid_use_activation", use_activation=1),
    classify_error("invalid_activation", activation="yes"),
    classify_error("invalid_activation", activation=True, softmax=False),
    classify_error("invalid_softmax", softmax=0),
    classify_error("invalid_priority", priority="high"),
    classify_error("invalid_request_id", request_id=7),
    classify_error("invalid_user", user=7),
    classify_error("invalid_add_special_tokens_type", add_special_tokens=None),
    classify_error("unsupported_parameter", truncate_prompt_tokens=5),
    classify_error("unsupported_parameter", messages=[]),
    classify_error("unknown_parameter", inputs=[]),
    classify_error("model_not_found", model="other"),
    classify_error("negative_token_id", input=[[-1]]),
    classify_error("invalid_cache_salt_type", cache_salt=7),
    classify_error("invalid_model_type", model=7),
    *[task_error(code, path, engine=error) for path in BODIES for code, error in FAILURES.items()],
    task_error("task_not_supported", "/v1/chat/completions", "model", has_template=False),
    task_error("task_not_supported", "/v1/chat/completions", "model", head_labels=("bad", "good")),
    task_error("task_not_supported", "/v1/completions", "model", head_labels=("bad", "good")),
    task_error("task_not_supported", "/v1/decisions", "model", head_labels=("bad", "good")),
    task_error("task_not_supported", "/v1/classify", "model", head_labels=()),
    task_error("task_not_supported", "/v1/token_classify", "model", only_task=None),
    task_error("task_not_supported", "/v1/classify", "model", only_task="token_classify"),
    task_error("task_not_supported", "/v1/rerank", "model", has_template=False),
    task_error("task_not_supported", "/v1/rerank", "model", head_labels=("bad", "good", "best")),
    task_error("too_many_items", "/v1/rerank", "documents", options={"max_items_per_request": 1}),
    task_error("too_many_items", "/v1/completions", "prompt", options={"max_items_per_request": 1}),
    task_error("too_many_items", "/v1/classify", "input", options={"max_items_per_request": 1}),
    task_error("too_many_labels", "/v1/decisions", "questions", options={"max_labels_per_request": 2}),
    task_error("too_many_tokens", "/v1/rerank", "documents", options={"max_request_tokens": 20}),
    task_error("too_many_tokens", "/v1/decisions", "questions", options={"max_request_tokens": 20}),
    task_error("too_many_tokens", "/v1/chat/completions", "messages", options={"max_request_tokens": 2}),
    task_error("too_many_tokens", "/v1/completions", "prompt", options={"max_request_tokens": 2}),
    task_error("too_many_tokens", "/v1/classify", "input", options={"max_request_tokens": 2}),
    task_error("too_many_tokens", "/v1/token_classify", "input", options={"max_request_tokens": 2}),
    replace(rerank_error("too_many_tokens", documents=["a" * 99]), options={"max_text_characters": 99}),
    task_error("too_many_tokens", "/v1/decisions", "input", options={"max_text_characters": 6}),
    task_error("too_many_tokens", "/v1/completions", "prompt", options={"max_text_characters": 9}),
    task_error("too_many_tokens", "/v1/classify", "input", options={"max_text_characters": 9}),
    system_one_error("missing_state", state=GONE),
    batch_error("missing_states", states=GONE),
    batch_error("empty_states", states=[]),
    batch_error("invalid_states", states="A cat."),
    batch_error("too_many_items", states=["a"] * 20_001),
    system_one_error("invalid_state", state=5),
    system_one_error("empty_questions", questions={}),
    system_one_error("invalid_x_on_error", x_on_error="skip"),
    system_one_error("invalid_x_choice_order", x_choice_order="any"),
    system_one_error("invalid_x_calibration", x_calibration="all"),
    system_one_error("invalid_x_cache_salt_type", x_cache_salt=7),
    system_one_error("invalid_x_abstain_below", x_abstain_below=2),
    chat_error("missing_messages", messages=GONE),
    chat_error("empty_messages", messages=[]),
    chat_error("invalid_messages", messages="a"),
    chat_error("invalid_messages", messages=[{"role": "someone", "content": "a"}]),
    chat_error("unsupported_parameter", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    chat_error("context_length_exceeded", messages=[{"role": "user", "content": "some words " * 200}]),
    chat_error("context_length_exceeded", messages=CHAT["messages"], max_tokens=256),
    Cause(
        "too_many_tokens",
        options={"max_request_tokens": 1000},
        param="max_tokens",
        path="/v1/chat/completions",
        content=json.dumps(CHAT | {"max_tokens": 100, "n": 20}).encode(),
    ),
    Cause(
        "too_many_sequences",
        options={"max_sequences_per_request": 19},
        param="n",
        path="/v1/chat/completions",
        content=json.dumps(CHAT | {"max_tokens": 2, "n": 20}).encode(),
    ),
    chat_error("unsupported_parameter", tools=[{}]),
    chat_error("unsupported_parameter", response_format={"type": "json_object"}),
    chat_error("invalid_max_tokens", max_tokens=0),
    chat_error("invalid_top_k", top_k=-2),
    chat_error("invalid_min_p", min_p=2),
    chat_error("invalid_presence_penalty", presence_penalty=3),
    chat_error("invalid_frequency_penalty", frequency_penalty="a"),
    chat_error("invalid_stop_token_ids", stop_token_ids=7),
    chat_error("invalid_ignore_eos", ignore_eos=1),
    chat_error("invalid_max_completion_tokens", max_completion_tokens="1"),
    chat_error("invalid_n", n=0),
    chat_error("invalid_temperature", temperature=-1),
    chat_error("invalid_top_p", top_p=2),
    chat_error("invalid_seed", seed=0.5),
    chat_error("invalid_logit_bias", logit_bias={"a": 1}),
    chat_error("token_id_exceeds_vocab", logit_bias={"1024": 1}),
    chat_error("invalid_stop", stop=[""]),
    chat_error("invalid_logprobs", logprobs=1),
    chat_error("invalid_top_logprobs", top_logprobs=21),
    chat_error("invalid_stream", stream="yes"),
    chat_error("invalid_stream_options", stream_options={"include_usage": True}),
    chat_error("invalid_chat_template_kwargs", chat_template_kwargs={"tools": []}),
    chat_error("invalid_add_generation_prompt", add_generation_prompt=1),
    chat_error("invalid_continue_final_message", continue_final_message=1),
    chat_error("invalid_labels_type", labels="a"),
    chat_error("empty_labels", labels=[]),
    chat_error("conflicting_labels", labels=["a"], label_token_ids=[7]),
    chat_error("invalid_label_token_ids_type", label_token_ids=[[7]]),
    chat_error("empty_label_token_ids", label_token_ids=[]),
    chat_error("negative_token_id", label_token_ids=[-1]),
    chat_error("token_id_exceeds_vocab", label_token_ids=[1024]),
    chat_error("too_many_labels", label_token_ids=[7] * 1025),
    chat_error("invalid_cache_salt_type", cache_salt=7),
    chat_error("invalid_model_type", model=7),
    chat_error("model_not_found", model="other"),
    chat_error("unknown_parameter", massages=[]),
    *[chat_error(f"invalid_{name}", **{name: [1]}) for name in without_effect(ChatBody)],
    completion_error("missing_prompt", prompt=GONE),
    completion_error("empty_prompt", prompt=[[1], []]),
    completion_error("invalid_prompt", prompt=["a", 1]),
    completion_error("invalid_token_id_type", prompt=[1.0]),
    completion_error("token_id_exceeds_vocab", prompt=[1024]),
    completion_error("context_length_exceeded", prompt=[1] * 257),
    completion_error("context_length_exceeded", prompt=[1] * 200, max_tokens=100),
    completion_error("invalid_best_of", best_of=2, max_tokens=2, stream=True),
    completion_error("unsupported_parameter", suffix="a"),
    completion_error("invalid_max_tokens", max_tokens=0),
    completion_error("invalid_echo", echo="yes"),
    completion_error("invalid_logprobs", logprobs=21),
    completion_error("invalid_best_of", best_of=0),
    completion_error("model_not_found", model="other"),
    completion_error("invalid_best_of", best_of=2, n=3),
    completion_error("invalid_n", n=2, max_tokens=0, echo=True),
    completion_error("too_many_items", prompt=["a"] * 20_001),
    completion_error("too_many_items", prompt=["a"] * 257, n=2),
    completion_error("too_many_sequences", n=128, prompt=[[1]] * 156),
    completion_error("too_many_sequences", best_of=128, prompt=[[1]] * 156, max_tokens=16),
    completion_error("too_many_sequences", prompt=[[1]] * 4097, max_tokens=2),
    completion_error("too_many_tokens", prompt=[[1] * 250] * 400, max_tokens=0, echo=True, logprobs=20),
    completion_error("negative_token_id", prompt=[-1]),
    completion_error("invalid_temperature", temperature=-1),
    completion_error("invalid_stream_options", stream_options={"include_usage": True}),
    completion_error("invalid_frequency_penalty", frequency_penalty="a"),
    completion_error("invalid_cache_salt_type", cache_salt=7),
    completion_error("invalid_add_special_tokens_type", add_special_tokens=1),
    completion_error("invalid_model_type", model=7),
    completion_error("unknown_parameter", promt="a"),
    chat_error("label_not_single_token", labels=["no such word is one token"]),
    Cause("invalid_prompt", param="prompt", path="/tokenize", content=b"{}"),
    Cause("invalid_tokens", param="tokens", path="/detokenize", content=b"{}"),
    Cause("invalid_json", content=b"{"),
    Cause("invalid_json", content=b"[]"),
    Cause("request_too_large", options={"max_body_bytes": 10}),
    Cause("unsupported_media_type", headers={"content-type": "text/plain"}),
    Cause("unsupported_media_type", headers={"content-encoding": "br"}),
    Cause("invalid_content_encoding", headers={"content-encoding": "gzip"}),
    Cause("invalid_request_timeout", param="x-request-timeout", headers={"x-request-timeout": "soon"}),
    Cause("deadline_exceeded", engine=RequestError("deadline_exceeded", "Too late.")),
    Cause("not_found", path="/v2/score"),
    Cause("method_not_allowed", method="DELETE"),
    Cause("invalid_api_key", options={"api_key": "secret"}),
    Cause("queue_full", engine=RequestError("queue_full", "Later.")),
    Cause("engine_unavailable", engine=EngineUnavailable("restarting")),
    Cause("internal_error", engine=EngineFault("a reason")),
    Cause("internal_error", engine=ZeroDivisionError("a reason")),
    Cause("profile_under_way", path="/start_profile", engine=RequestError("profile_under_way", "Stop it first.")),
    Cause("no_profile", path="/stop_profile", engine=RequestError("no_profile", "Start one first.")),
]
# Below, for no HTTP client sends such things; and in tokenizers/test_limits.py, whose tokenizers fail.
ELSEWHERE = {"invalid_http", "request_timeout", "tokenizer_failed"}


def test_every_code_has_a_cause_here() -> None:
    assert {cause.code for cause in CAUSES} | ELSEWHERE == set(ERRORS)


@pytest.mark.parametrize("cause", CAUSES, ids=[f"{number}-{cause.code}" for number, cause in enumerate(CAUSES)])
def test_a_cause_gets_its_code(
    shared: Shared, tokenizer: Any, score_body: Body, monkeypatch: pytest.MonkeyPatch, cause: Cause
) -> None:
    if not cause.has_template:
        monkeypatch.setattr(tokenizer, "chat_template", None)
    http, pretended = shared(engine_options=cause.flags, **cause.options)
    pretended.error = cause.engine
    served = {"head_labels": cause.head_labels, "only_task": cause.only_task}
    pretended.info = msgspec.structs.replace(pretended.info, **served)
    body = {name: value for name, value in score_body(**cause.changes).items() if value is not GONE}
    content = json.dumps(body).encode() if cause.content is None else cause.content
    headers = {"content-type": "application/json"} | cause.headers
    reply = http.request(cause.method, cause.path, content=content, headers=headers)
    if cause.path in PATHS:
        (fault,) = reply.json()["detail"]
        assert (reply.status_code, fault["type"], fault["loc"]) == (422, cause.code, ["body", cause.param])
        assert 0 < len(fault["msg"]) <= 500
        return
    error = reply.json()["error"]
    status, kind = ERRORS[cause.code]
    assert (reply.status_code, error["code"], error["type"], error["param"]) == (status, cause.code, kind, cause.param)
    assert set(reply.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 500
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    if status in (429, 503):
        assert 1 <= int(reply.headers["retry-after"]) <= 60


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"nonsense\r\n\r\n", "invalid_http"),
        (
            b"POST /v1/score HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
            "request_timeout",
        ),
    ],
)
def test_what_no_client_sends_gets_its_code(connect: Connect, data: bytes, code: str) -> None:
    base = connect(body_timeout=1).base_url
    with socket.create_connection((base.host, base.port or 80), timeout=120) as connection:
        connection.sendall(data)
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    status, kind = ERRORS[code]
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"x-request-id: " in head
    error = json.loads(body)["error"]
    assert (error["code"], error["type"], error["param"]) == (code, kind, None)
