"""Servers of others as targets: fakes that speak each dialect, and everything that can go wrong with any server."""

import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types import Completion
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from fake_server import FakeServer
from mis_bench.targets import http
from mis_bench.targets.registry import opener
from mis_bench.targets.spec import TargetSpec, without_secrets
from mis_bench.targets.target import CallFailed, TargetUnavailable
from mis_bench.workload import Workload, build_workload
from mis_testing.server import free_port
from targets import Connect, ask

VOCABULARY = 2048

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:
        yield Connect(stack)


@pytest.fixture
def workload() -> Workload:
    return build_workload("ragged-6-5-3").within(VOCABULARY)


def with_labels(workload: Workload, labels: list[int], *, softmax: bool = False) -> Workload:
    return Workload("asked", workload.query, workload.items, np.array(labels, np.int32), softmax)


# Fakes of each kind, whose scores are any function of item and label.


def probability(tokens: list[int], label: int) -> float:
    return 1 / (2 + sum(tokens) % 7 + label % 5)


def scored(body: dict[str, Any]) -> dict[str, Any]:
    """`/v1/score`, of ours and SGLang."""
    rows = [[probability(item, label) for label in body["label_token_ids"]] for item in body["items"]]
    return {"scores": rows, "usage": {"prompt_tokens_details": {"cached_tokens": 4}}}


def generative(body: dict[str, Any]) -> dict[str, Any]:
    """`/generative_scoring` of vLLM: the first label's score, items in any order."""
    data = []
    for index, item in enumerate(body["items"]):
        weights = [probability(item, each) for each in body["label_token_ids"]]
        score = weights[0] / sum(weights) if body["apply_softmax"] else weights[0]
        data.append({"index": index, "object": "score", "score": score})
    return {"data": data[::-1]}


def completions(body: dict[str, Any]) -> dict[str, Any]:
    """`/v1/completions`, held to the request and reply of the official client; choices in any order."""
    extra = {"return_tokens_as_token_ids"}
    assert set(body) - extra <= CompletionCreateParamsNonStreaming.__annotations__.keys()
    TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body)
    choices = []
    for index, prompt in enumerate(body["prompt"]):
        top = {f"token_id:{label}": math.log(probability(prompt, label)) for label in range(3, 3 + body["logprobs"])}
        chosen = {"tokens": [*top][:1], "token_logprobs": [*top.values()][:1], "top_logprobs": [top]}
        choices.append({"index": index, "text": "?", "finish_reason": "length", "logprobs": chosen})
    fields = {"id": "c", "created": 1, "model": body["model"], "object": "text_completion", "choices": choices[::-1]}
    return Completion.model_validate(fields).model_dump()


DIALECTS = {"/v1/score": scored, "/generative_scoring": generative, "/v1/completions": completions}
OPTIONS = {"openai": {"token_ids": "true"}}


async def test_sglang_is_asked_as_it_wants(connect: Connect, fake: FakeServer, workload: Workload) -> None:
    info = {"version": "0.5.23", "dtype": "bfloat16", "tp_size": 1, "api_key": "secret", "nested": {"a": 1}}
    fake.routes |= {"/v1/score": scored, "/server_info": info, "/flush_cache": (200, "Cache flushed.\n")}
    target = await connect(f"sglang={fake.url}", api_key="k")
    reply = await ask(target, workload)
    np.testing.assert_array_equal(reply.scores, scored(workload.request)["scores"])
    assert reply.cached_tokens == 4
    assert fake.asked("/v1/score")[-1] == workload.request | {"model": "fake"}
    assert fake.headers[-1]["authorization"] == "Bearer k"
    await target.forget()
    assert fake.bodies[-1][0] == "/flush_cache"
    assert (target.about.dtype, target.about.versions) == ("bfloat16", {"sglang": "0.5.23"})
    assert target.about.options == {"version": "0.5.23", "dtype": "bfloat16", "tp_size": 1}
    fake.routes["/flush_cache"] = (400, "Requests are running.")
    with pytest.raises(CallFailed, match="Requests are running"):
        await target.forget()


@pytest.mark.parametrize(("labels", "softmax", "calls"), [(2, True, 1), (2, False, 2), (3, True, 3)])
async def test_vllm_is_asked_for_every_label(
    connect: Connect, fake: FakeServer, workload: Workload, labels: int, softmax: bool, calls: int
) -> None:
    fake.routes |= {"/generative_scoring": generative, "/version": {"version": "0.33.0rc1"}}
    target = await connect(f"vllm={fake.url}")
    asked = with_labels(workload, list(range(3, 3 + labels)), softmax=softmax)
    before = len(fake.asked("/generative_scoring"))
    scores = (await ask(target, asked)).scores
    weights = np.array(scored(asked.request)["scores"])
    np.testing.assert_allclose(scores, weights / weights.sum(1, keepdims=True) if softmax else weights)
    bodies = fake.asked("/generative_scoring")[before:]
    assert len(bodies) == calls
    assert all(sorted(body["label_token_ids"]) == asked.label_token_ids.tolist() for body in bodies)
    assert all(body["add_special_tokens"] is False and body["apply_softmax"] is softmax for body in bodies)
    assert target.about.versions == {"vllm": "0.33.0rc1"}


@pytest.mark.parametrize("softmax", [False, True])
async def test_completions_are_asked_for_all_items_at_once(
    connect: Connect, fake: FakeServer, workload: Workload, softmax: bool
) -> None:
    fake.routes["/v1/completions"] = completions
    target = await connect(f"openai={fake.url}/v1/", token_ids="true", logprobs="3")
    asked = with_labels(workload, [5, 3], softmax=softmax)
    scores = (await ask(target, asked)).scores
    prompts = [[*workload.query.tolist(), *np.asarray(item).tolist()] for item in workload.items]
    weights = np.array([[probability(prompt, label) for label in (5, 3)] for prompt in prompts])
    np.testing.assert_allclose(scores, weights / weights.sum(1, keepdims=True) if softmax else weights)
    _, body = fake.asked("/v1/completions")
    assert body["prompt"] == prompts
    assert body["max_tokens"] == 1
    assert body["return_tokens_as_token_ids"]
    with pytest.raises(CallFailed, match="'token_id:9454' is not among the 3 most probable tokens after item 0"):
        await ask(target, with_labels(workload, [5, 9454]))


async def test_labels_are_found_by_their_text(connect: Connect, fake: FakeServer, checkpoint: Path) -> None:
    from mis_core.tokenization import Tokenizer

    text = Tokenizer.from_pretrained(checkpoint).decode([65])
    found = {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{text: math.log(0.25), "?": -9.0}]}}]}
    fake.routes["/v1/completions"] = found
    target = await connect(f"openai={fake.url}", model=checkpoint)
    asked = Workload("asked", "a query", (" an item",), np.array([65], np.int32))
    assert (await ask(target, asked)).scores.tolist() == [[pytest.approx(0.25)]]
    assert fake.asked("/v1/completions")[-1]["prompt"] == ["a query an item"]
    assert target.about.model_sha256 is not None
    with pytest.raises(TargetUnavailable, match="--model for its tokenizer, or token_ids=true"):
        await connect(f"openai={fake.url}")


# The clock.


async def test_the_clock_covers_neither_encoding_nor_decoding(
    connect: Connect, fake: FakeServer, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.routes |= {"/generative_scoring": generative, "/version": {"version": "0.33"}}
    target = await connect(f"vllm={fake.url}")
    request = target.prepare(workload)
    decoded_s: list[float] = []
    decode = http.Server._decoded
    monkeypatch.setattr(http.Server, "_decoded", lambda *args: decoded_s.append(time.perf_counter()) or decode(*args))
    monkeypatch.setattr(http, "json", None)  # nothing is encoded while the clock runs
    began = time.perf_counter()
    answer = await target.call(request)
    assert began <= answer.sent_s < answer.done_s <= min(decoded_s)
    assert len(decoded_s) == len(request.bodies) == 2


async def test_a_request_prepared_before_the_cache_is_cleared_is_cold(
    connect: Connect, fake: FakeServer, workload: Workload
) -> None:
    fake.routes |= {"/v1/score": scored, "/server_info": {}}
    target = await connect(f"mis={fake.url}")
    request = target.prepare(workload)
    for _ in range(2):
        await target.call(request)
    await target.forget()
    await target.call(request)
    salts = [body["cache_salt"] for body in fake.asked("/v1/score")[1:]]
    assert salts[0] == salts[1] != salts[2]
    other = await connect(f"mis={fake.url}")
    await ask(other, workload)
    assert fake.asked("/v1/score")[-1]["cache_salt"] not in salts  # nor do runs share any


# What a target can do, and whether it can run.


@pytest.mark.parametrize(
    ("spec", "version", "forgets"),
    [("mis", "1", True), ("sglang", "1", True), ("openai", "1", False), ("vllm", "0.33.0", True)]
    + [("vllm", version, False) for version in ("0.32.9", "0.9.1", "dev", None)],
)
async def test_a_target_says_whether_it_can_forget(
    connect: Connect, fake: FakeServer, spec: str, version: str | None, forgets: bool
) -> None:
    fake.routes |= DIALECTS | {"/version": {"version": version}, "/server_info": {}, "/flush_cache": {}}
    found = opener(TargetSpec("t", f"{spec}={fake.url}", OPTIONS.get(spec, {})))
    await found.check()
    assert found.forgets is forgets
    assert not any(path in DIALECTS for path, _ in fake.bodies), "a check asks for no scores"
    target = await connect(f"{spec}={fake.url}", **OPTIONS.get(spec, {}))
    if forgets:
        await target.forget()
    else:
        with pytest.raises(CallFailed, match="cannot clear its prefix cache") as caught:
            await target.forget()
        assert caught.value.reason == "rejected"


async def test_servers_take_no_layout(connect: Connect, fake: FakeServer, workload: Workload) -> None:
    fake.routes |= {"/v1/score": scored, "/server_info": {}}
    with pytest.raises(CallFailed, match="does not accept a layout"):
        (await connect(f"mis={fake.url}")).prepare(workload, {"scoring_algorithm": "packed"})


async def checked(spec: str, **options: str) -> None:
    """Check and open, each of which must find what is wrong."""
    with pytest.raises(TargetUnavailable) as caught:
        await opener(TargetSpec(spec, spec, options)).open()
    with pytest.raises(TargetUnavailable) as earlier:
        await opener(TargetSpec(spec, spec, options)).check()
    assert str(caught.value) == str(earlier.value)
    raise caught.value


async def test_a_missing_or_unhealthy_server_is_found_by_the_check(fake: FakeServer) -> None:
    with pytest.raises(TargetUnavailable, match=r"failed its check \(connection_error\)"):
        await checked(f"mis=http://127.0.0.1:{free_port()}")
    fake.routes["/health"] = (503, "starting")
    with pytest.raises(TargetUnavailable, match="503: starting"):
        await checked(f"sglang={fake.url}")


async def test_the_model_must_be_the_one_that_is_wanted(connect: Connect, fake: FakeServer) -> None:
    fake.routes |= {"/v1/score": scored, "/v1/models": {"data": [{"id": "one"}, {"id": "two"}]}}
    target = await opener(TargetSpec("t", f"sglang={fake.url}", {"model": "two"})).open()
    assert target.about.model == "two"
    await target.close()
    with pytest.raises(TargetUnavailable, match="serves one, two, not three"):
        await checked(f"sglang={fake.url}", model="three")
    fake.routes["/v1/models"] = {"data": []}
    with pytest.raises(TargetUnavailable, match="serves no model"):
        await checked(f"sglang={fake.url}")


async def test_a_server_that_cannot_score_is_found_before_measuring(connect: Connect, fake: FakeServer) -> None:
    fake.routes["/v1/score"] = (500, "broken")
    with pytest.raises(TargetUnavailable, match="500: broken"):
        await connect(f"sglang={fake.url}")


def slow(_: dict[str, Any]) -> dict[str, Any]:
    time.sleep(1.0)
    return {}


async def test_a_server_has_5_seconds_for_health_and_30_for_a_score(
    connect: Connect, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (http.TOLD_TIMEOUT_S, http.PROBE_TIMEOUT_S) == (5.0, 30.0)
    for name, path in (("TOLD_TIMEOUT_S", "/health"), ("PROBE_TIMEOUT_S", "/v1/score")):
        fake.routes |= {"/health": {}, "/v1/score": scored} | {path: slow}
        with monkeypatch.context() as patch:
            patch.setattr(http, name, 0.1)
            with pytest.raises(TargetUnavailable, match=rf"\(timeout\).*{path} did not answer within 0.1 s"):
                await connect(f"sglang={fake.url}")


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("mis=http://h:1", {"api_kye": "k"}, "'api_kye' of mis=http://h:1: .* Known options: api_key, model, admin"),
        ("sglang=http://h:1", {"admin_key": "k"}, "'admin_key' of sglang=http://h:1: Extra inputs are not"),
        ("openai=http://h:1", {"token_ids": "true", "logprobs": "0"}, "Option 'logprobs' .*greater than 0"),
        ("openai=http://h:1", {"token_ids": "perhaps"}, "Option 'token_ids' .*valid boolean"),
        ("mis=localhost:30000", {}, "address is not valid"),
        ("mis=http://h:port", {}, "address is not valid"),
        ("sglang=http://me:hush@host:1", {}, "without user or password"),
    ],
)
async def test_mistakes_are_named_before_anything_is_sent(spec: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message) as caught:
        opener(TargetSpec(spec, spec, options))
    assert "hush" not in str(caught.value)


# What can go wrong with a call.

FAILURES: dict[str, Any] = {
    "connection_error": lambda _: None,
    "http_error": (503, json.dumps({"error": {"message": "The engine is not ready."}})),
    "rejected": (400, json.dumps({"object": "error", "message": "Too long."})),
    "out_of_memory": (500, json.dumps({"detail": "RESOURCE_EXHAUSTED: Out of memory"})),
    "bad_json": (200, "<html>"),
    "missing_scores": {"scores": None},
    "shape_mismatch": {"scores": [[0.5, 0.5]]},
}


@pytest.mark.parametrize("reason", FAILURES)
async def test_failures_are_named(connect: Connect, fake: FakeServer, workload: Workload, reason: str) -> None:
    fake.routes["/v1/score"] = scored
    target = await connect(f"sglang={fake.url}")
    fake.routes["/v1/score"] = FAILURES[reason]
    with pytest.raises(CallFailed) as caught:
        await ask(target, workload)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 600
    fake.routes["/v1/score"] = scored
    assert (await ask(target, workload)).scores.shape == (5, 2)  # the next call is not harmed


WITHOUT_TOPS = [{"index": index, "logprobs": {"top_logprobs": [1]}} for index in range(5)]


@pytest.mark.parametrize(
    ("spec", "route", "reply", "reason"),
    [
        ("sglang", "/v1/score", {"scores": [[0.5, None]] * 5}, "missing_scores"),
        ("sglang", "/v1/score", {"scores": [[0.5, math.nan]] * 5}, "missing_scores"),
        ("sglang", "/v1/score", {"scores": [[0.5, 0.5]] * 4 + [[0.5]]}, "shape_mismatch"),
        ("sglang", "/v1/score", {"scores": [[0.5] * 3] * 5}, "shape_mismatch"),
        ("sglang", "/v1/score", {"scores": "none"}, "shape_mismatch"),
        ("sglang", "/v1/score", {"scores": []}, "shape_mismatch"),
        ("vllm", "/generative_scoring", {}, "missing_scores"),
        ("vllm", "/generative_scoring", {"data": [{"score": 1.0}]}, "missing_scores"),
        ("vllm", "/generative_scoring", {"data": [{"index": 0, "score": 1.0}]}, "shape_mismatch"),
        ("vllm", "/generative_scoring", {"data": [{"index": i, "score": None} for i in range(5)]}, "missing_scores"),
        ("openai", "/v1/completions", {"choices": []}, "shape_mismatch"),
        ("openai", "/v1/completions", {"choices": [{"index": 0, "logprobs": None}]}, "missing_scores"),
        ("openai", "/v1/completions", {"choices": WITHOUT_TOPS}, "missing_scores"),
    ],
)  # fmt: skip
async def test_replies_that_are_not_all_there_are_refused(
    connect: Connect, fake: FakeServer, workload: Workload, spec: str, route: str, reply: Any, reason: str
) -> None:
    fake.routes |= DIALECTS
    target = await connect(f"{spec}={fake.url}", **OPTIONS.get(spec, {}))
    fake.routes[route] = reply
    with pytest.raises(CallFailed) as caught:
        await ask(target, workload)
    assert caught.value.reason == reason


async def test_a_key_is_in_no_message(connect: Connect, fake: FakeServer) -> None:
    fake.routes |= {"/v1/score": scored, "/flush_cache": (401, "Wrong key: secret.")}
    target = await connect(f"sglang={fake.url}", api_key="secret")
    with pytest.raises(CallFailed, match=r"Wrong key: \*\*\*"):
        await target.forget()
    assert fake.headers[-1]["authorization"] == "Bearer secret"
    assert "secret" not in repr(target.about)


@pytest.mark.parametrize(
    ("spelling", "shown"),
    [
        ("mis=http://h:1,api_key=hush,model=m", "mis=http://h:1,model=m"),
        ("mis=http://h:1,ADMIN_KEY=hush", "mis=http://h:1"),
        ("mis=http://h:1,api_key=hu,sh", "mis=http://h:1"),
        ("mis=http://me:hush@h:1", "mis=http://h:1"),
        ("openai=http://h,token_ids=true,hf_token=hush", "openai=http://h,token_ids=true"),
        ("engine,scoring_algorithm=packed", "engine,scoring_algorithm=packed"),
    ],
)
async def test_spellings_are_shown_without_secrets(spelling: str, shown: str) -> None:
    assert without_secrets(spelling) == shown


async def test_memory_is_told_where_the_server_tells(connect: Connect, fake: FakeServer) -> None:
    fake.routes["/v1/score"] = scored
    target = await connect(f"sglang={fake.url}")
    assert await target.counts() == {}
    text = "# HELP process_resident_memory_bytes x\nprocess_resident_memory_bytes 1e+08\nother 1\n"
    fake.routes["/metrics"] = (200, text)
    assert await target.counts() == {"memory_bytes": 1e8}
