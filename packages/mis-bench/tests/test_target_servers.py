"""Servers of others as targets, as small fakes, and everything that can go wrong with any server."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_server import FakeServer
from mis_bench.targets.base import BlockingTarget, CallFailed, TargetUnavailable
from mis_bench.targets.options import without_secrets
from mis_bench.targets.registry import make_target
from mis_bench.validation.subject import open_subject
from mis_bench.workload import Workload, build_workload
from mis_testing.server import free_port

VOCABULARY = 2048


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.http.shutdown()
    fake.http.server_close()


@pytest.fixture
def connect() -> Iterator[Callable[..., BlockingTarget]]:
    with ExitStack() as stack:
        yield lambda spec, **options: stack.enter_context(closing(make_target(spec, **options)))


@pytest.fixture
def workload() -> Workload:
    return build_workload("ragged-6-5-3").within(VOCABULARY)


def probability(item: list[int], label: int) -> float:
    """Any function of both will do."""
    return 1 / (2 + sum(item) % 7 + label % 5)


def scored(body: dict[str, Any]) -> dict[str, Any]:
    rows = [[probability(item, label) for label in body["label_token_ids"]] for item in body["items"]]
    return {"scores": rows, "usage": {"prompt_tokens_details": {"cached_tokens": 4}}}


def expected(workload: Workload) -> np.ndarray:
    return np.array(scored(workload.request)["scores"])


def test_sglang_is_asked_as_it_wants(connect, fake: FakeServer, workload: Workload) -> None:
    info = {"version": "0.5.23", "dtype": "bfloat16", "tp_size": 1, "api_key": "secret", "nested": {"a": 1}}
    fake.routes |= {"/v1/score": scored, "/server_info": info, "/flush_cache": (200, "Cache flushed.\n")}
    target = connect(f"sglang={fake.url}", options={"api_key": "k"})
    reply = target.score(workload)
    np.testing.assert_array_equal(reply.scores, expected(workload))
    assert reply.cached_tokens == 4
    assert fake.asked("/v1/score")[-1] == workload.request | {"model": "fake"}
    assert fake.headers[-1]["authorization"] == "Bearer k"
    target.forget()
    assert fake.bodies[-1][0] == "/flush_cache"
    assert (target.about.dtype, target.about.versions) == ("bfloat16", {"sglang": "0.5.23"})
    assert target.about.options == {"version": "0.5.23", "dtype": "bfloat16", "tp_size": 1}
    fake.routes["/flush_cache"] = (400, "Requests are running.")
    with pytest.raises(CallFailed, match="Requests are running"):
        target.forget()


def generative(body: dict[str, Any]) -> dict[str, Any]:
    label, *others = body["label_token_ids"]
    data = []
    for index, item in enumerate(body["items"]):
        weights = [probability(item, each) for each in (label, *others)]
        score = weights[0] / sum(weights) if body["apply_softmax"] else weights[0]
        data.append({"index": index, "object": "score", "score": score})
    return {"data": data[::-1]}  # any order


@pytest.mark.parametrize(("labels", "softmax", "calls"), [(2, True, 1), (2, False, 2), (3, True, 3)])
def test_vllm_is_asked_for_every_label(
    connect, fake: FakeServer, workload: Workload, labels: int, softmax: bool, calls: int
) -> None:
    fake.routes |= {"/generative_scoring": generative, "/version": {"version": "0.33.0rc1"}}
    target = connect(f"vllm={fake.url}")
    asked = Workload("asked", workload.query, workload.items, np.arange(3, 3 + labels, dtype=np.int32), softmax)
    before = len(fake.asked("/generative_scoring"))
    scores = target.score(asked).scores
    weights = expected(asked)
    np.testing.assert_allclose(scores, weights / weights.sum(1, keepdims=True) if softmax else weights)
    bodies = fake.asked("/generative_scoring")[before:]
    assert len(bodies) == calls
    assert all(sorted(body["label_token_ids"]) == asked.label_token_ids.tolist() for body in bodies)
    assert all(body["add_special_tokens"] is False and body["apply_softmax"] is softmax for body in bodies)
    target.forget()
    target.score(asked)
    assert fake.asked("/generative_scoring")[-1]["cache_salt"] != bodies[-1]["cache_salt"]
    assert target.about.versions == {"vllm": "0.33.0rc1"}


def test_one_that_knows_no_way_to_forget_is_not_validated(fake: FakeServer) -> None:
    fake.routes["/v1/completions"] = completions
    with pytest.raises(TargetUnavailable, match="knows no way to forget"):
        open_subject(f"openai={fake.url}", None, {"token_ids": "true"}, 5.0)


def test_a_server_that_is_validated_is_waited_for_as_long_as_a_call_may_take(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def make(spec: str, *, options: dict[str, str], **more: Any) -> BlockingTarget:
        given.append(options)
        return make_target(spec, options=options, **more)

    monkeypatch.setattr("mis_bench.validation.subject.make_target", make)
    fake.routes |= {"/server_info": {}, "/v1/score": {"scores": [[0.5, 0.5]]}}
    open_subject(f"mis={fake.url}", None, {}, 400.0).close()
    assert given == [{"timeout_s": "400.0"}]


@pytest.mark.parametrize("version", ["0.32.9", "0.9.1", "dev", None])
def test_a_vllm_that_ignores_salts_says_that_it_cannot_forget(connect, fake: FakeServer, version: str | None) -> None:
    fake.routes |= {"/generative_scoring": generative, "/version": {"version": version}}
    with pytest.raises(CallFailed, match=r"knows no way to forget a query; 0\.33 is the first") as caught:
        connect(f"vllm={fake.url}").forget()
    assert caught.value.reason == "rejected"


def test_a_key_is_in_no_message(connect, fake: FakeServer, workload: Workload) -> None:
    fake.routes |= {"/v1/score": scored, "/flush_cache": (401, "Wrong key: hush.")}
    target = connect(f"sglang={fake.url}", options={"api_key": "hush"})
    with pytest.raises(CallFailed, match=r"Wrong key: \*\*\*"):
        target.forget()
    assert "hush" not in repr(target.about)
    with pytest.raises(TargetUnavailable, match="Write no user or password") as caught:
        connect("sglang=http://me:hush@host:1")
    assert "hush" not in str(caught.value)


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
def test_spellings_are_shown_without_secrets(spelling: str, shown: str) -> None:
    assert without_secrets(spelling) == shown


def completions(body: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for index, prompt in enumerate(body["prompt"]):
        logprobs = {
            f"token_id:{label}": math.log(probability(prompt, label)) for label in range(3, 3 + body["logprobs"])
        }
        choices.append({"index": index, "text": "?", "logprobs": {"top_logprobs": [logprobs]}})
    return {"choices": choices[::-1]}


@pytest.mark.parametrize("softmax", [False, True])
def test_completions_are_asked_for_in_batches(connect, fake: FakeServer, workload: Workload, softmax: bool) -> None:
    fake.routes["/v1/completions"] = completions
    options = {"token_ids": "true", "prompts_per_call": "2", "logprobs": "3"}
    target = connect(f"openai={fake.url}/v1/", options=options)
    asked = Workload("asked", workload.query, workload.items, np.array([5, 3], np.int32), softmax)
    scores = target.score(asked).scores
    prompts = [[*workload.query.tolist(), *np.asarray(item).tolist()] for item in workload.items]
    weights = np.array([[probability(prompt, label) for label in (5, 3)] for prompt in prompts])
    np.testing.assert_allclose(scores, weights / weights.sum(1, keepdims=True) if softmax else weights)
    bodies = fake.asked("/v1/completions")[1:]
    assert [prompt for body in bodies for prompt in body["prompt"]] == prompts
    assert [len(body["prompt"]) for body in bodies] == [2, 2, 1]
    assert all(body["max_tokens"] == 1 and body["return_tokens_as_token_ids"] for body in bodies)
    with pytest.raises(CallFailed, match="knows no way to forget") as caught:
        target.forget()
    assert caught.value.reason == "rejected"


def test_a_label_that_is_not_among_the_most_probable_fails_the_call(
    connect, fake: FakeServer, workload: Workload
) -> None:
    fake.routes["/v1/completions"] = completions
    target = connect(f"openai={fake.url}", options={"token_ids": "true", "logprobs": "3"})
    with pytest.raises(
        CallFailed, match=r"'token_id:9454' is not among the 3 most probable tokens after item 0"
    ) as caught:
        target.score(Workload("asked", workload.query, workload.items, np.array([5, 9454], np.int32)))
    assert caught.value.reason == "missing_scores"


def test_labels_are_found_by_their_text(connect, fake: FakeServer, checkpoint: Path) -> None:
    from mis_core.tokenization import Tokenizer

    text = Tokenizer.from_pretrained(checkpoint).decode([65])
    found = {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{text: math.log(0.25), "?": -9.0}]}}]}
    fake.routes["/v1/completions"] = found
    target = connect(f"openai={fake.url}", model=checkpoint)
    asked = Workload("asked", "a query", (" an item",), np.array([65], np.int32))
    assert target.score(asked).scores.tolist() == [[pytest.approx(0.25)]]
    assert fake.asked("/v1/completions")[-1]["prompt"] == ["a query an item"]
    assert target.about.model_sha256 is not None
    with pytest.raises(TargetUnavailable, match="--model for its tokenizer, or token_ids=true"):
        connect(f"openai={fake.url}")


# What can go wrong.


def slow(_: dict[str, Any]) -> dict[str, Any]:
    time.sleep(1.0)
    return {}


FAILURES = {
    "timeout": slow,
    "connection_error": lambda _: None,
    "http_error": (503, json.dumps({"error": {"message": "The engine is not ready."}})),
    "rejected": (400, json.dumps({"object": "error", "message": "Too long."})),
    "out_of_memory": (500, json.dumps({"detail": "RESOURCE_EXHAUSTED: Out of memory"})),
    "bad_json": (200, "<html>"),
    "missing_scores": {"scores": None},
    "shape_mismatch": {"scores": [[0.5, 0.5]]},
}


@pytest.mark.parametrize("reason", FAILURES)
def test_failures_are_named(connect, fake: FakeServer, workload: Workload, reason: str) -> None:
    fake.routes["/v1/score"] = scored
    target = connect(f"sglang={fake.url}", options={"timeout_s": "0.3"})
    fake.routes["/v1/score"] = FAILURES[reason]
    with pytest.raises(CallFailed) as caught:
        target.score(workload)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 600
    fake.routes["/v1/score"] = scored
    assert target.score(workload).scores.shape == (5, 2)  # the next call is not harmed


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([[0.5, None]] * 5, "missing_scores"),
        ([[0.5, math.nan]] * 5, "missing_scores"),
        ([[0.5, 0.5]] * 4 + [[0.5]], "shape_mismatch"),
        ([[0.5] * 3] * 5, "shape_mismatch"),
        ("none", "shape_mismatch"),
        ([], "shape_mismatch"),
    ],
)
def test_scores_that_are_not_all_there_are_refused(
    connect, fake: FakeServer, workload: Workload, scores: Any, reason: str
) -> None:
    fake.routes["/v1/score"] = scored
    target = connect(f"sglang={fake.url}")
    fake.routes["/v1/score"] = {"scores": scores}
    with pytest.raises(CallFailed) as caught:
        target.score(workload)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("route", "reply", "reason"),
    [
        ("/generative_scoring", {}, "missing_scores"),
        ("/generative_scoring", {"data": [{"score": 1.0}]}, "missing_scores"),
        ("/generative_scoring", {"data": [{"index": 0, "score": 1.0}]}, "shape_mismatch"),
        ("/generative_scoring", {"data": [{"index": i, "score": None} for i in range(5)]}, "missing_scores"),
        ("/v1/completions", {"choices": []}, "shape_mismatch"),
        ("/v1/completions", {"choices": [{"index": 0, "logprobs": None}]}, "missing_scores"),
        ("/v1/completions", {"choices": [{"index": 0, "logprobs": {"top_logprobs": [None]}}]}, "missing_scores"),
    ],
)
def test_replies_of_other_dialects_are_checked(
    connect, fake: FakeServer, workload: Workload, route: str, reply: dict[str, Any], reason: str
) -> None:
    fake.routes |= {"/generative_scoring": generative, "/v1/completions": completions}
    if route == "/generative_scoring":
        target = connect(f"vllm={fake.url}")
    else:
        target = connect(f"openai={fake.url}", options={"token_ids": "true", "prompts_per_call": "1"})
    fake.routes[route] = reply
    with pytest.raises(CallFailed) as caught:
        target.score(workload)
    assert caught.value.reason == reason


def test_a_server_that_is_not_there_or_not_well_is_found_by_the_check(connect, fake: FakeServer) -> None:
    with pytest.raises(TargetUnavailable, match=r"failed its check \(connection_error\)"):
        connect(f"mis=http://127.0.0.1:{free_port()}")
    with pytest.raises(TargetUnavailable, match="no address of a server"):
        connect("mis=localhost:30000")
    fake.routes["/health"] = (503, "starting")
    with pytest.raises(TargetUnavailable, match="503: starting"):
        connect(f"sglang={fake.url}")


def test_a_server_that_cannot_score_is_found_by_the_check(connect, fake: FakeServer) -> None:
    fake.routes["/v1/score"] = (500, "broken")
    with pytest.raises(TargetUnavailable, match="500: broken"):
        connect(f"sglang={fake.url}")


def test_a_server_is_given_5_seconds_for_its_health_and_30_for_a_score(
    connect, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mis_bench.targets import http

    assert (http.HEALTH_TIMEOUT_S, http.PROBE_TIMEOUT_S) == (5.0, 30.0)
    monkeypatch.setattr(http, "HEALTH_TIMEOUT_S", 0.1)
    fake.routes |= {"/health": slow, "/v1/score": scored}
    with pytest.raises(TargetUnavailable, match=r"\(timeout\).*/health did not answer within 0.1 s"):
        connect(f"sglang={fake.url}")
    monkeypatch.setattr(http, "HEALTH_TIMEOUT_S", 5.0)
    monkeypatch.setattr(http, "PROBE_TIMEOUT_S", 0.1)
    fake.routes |= {"/health": {}, "/v1/score": slow}
    with pytest.raises(TargetUnavailable, match=r"\(timeout\).*/v1/score did not answer within 0.1 s"):
        connect(f"sglang={fake.url}")


def test_the_model_must_be_the_one_that_is_wanted(connect, fake: FakeServer) -> None:
    fake.routes |= {"/v1/score": scored, "/v1/models": {"data": [{"id": "one"}, {"id": "two"}]}}
    assert connect(f"sglang={fake.url}", options={"model": "two"}).about.model == "two"
    with pytest.raises(TargetUnavailable, match="serves one, two, not three"):
        connect(f"sglang={fake.url}", options={"model": "three"})
    fake.routes["/v1/models"] = {"data": []}
    with pytest.raises(TargetUnavailable, match="serves no model"):
        connect(f"sglang={fake.url}")


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("mis", {"api_kye": "k"}, "did you mean api_key"),
        ("sglang", {"admin_key": "k"}, "has no option 'admin_key'"),
        ("mis", {"timeout_s": "soon"}, "timeout_s must be a number of seconds above 0"),
        ("openai", {"token_ids": "true", "logprobs": "0"}, "logprobs must be an integer of at least 1"),
        ("openai", {"token_ids": "perhaps"}, "token_ids must be false or true"),
    ],
)
def test_wrong_options_are_named(connect, fake: FakeServer, spec: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message):
        connect(f"{spec}={fake.url}", options=options)


def test_metrics_are_summed_over_labels_and_absent_where_there_are_none(connect, fake: FakeServer) -> None:
    fake.routes["/v1/score"] = scored
    target = connect(f"sglang={fake.url}")
    assert target.counts() == {}
    text = """# HELP x y
sglang:num_requests_total{model="a"} 2.0
sglang:num_requests_total{model="b c"} 3.0
sglang:latency_bucket{le="+Inf"} 5.0
sglang:stage_seconds{a="b",stage="queue"} 0.5
sglang:stage_seconds{stage="device"} 1.5
process_resident_memory_bytes 1e+08
nonsense
"""
    fake.routes["/metrics"] = (200, text)
    assert target.counts() == {
        "sglang:num_requests_total": 5.0,
        "sglang:stage_seconds.queue": 0.5,
        "sglang:stage_seconds.device": 1.5,
        "process_resident_memory_bytes": 1e8,
        "memory_bytes": 1e8,
    }
