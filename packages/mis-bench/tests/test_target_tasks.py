"""Rerank, decisions and log-likelihoods, asked of servers as each documents them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fake_server import FakeServer
from mis_bench.cli import main
from mis_bench.results.folder import read_results
from mis_bench.results.summary import summarize
from mis_bench.targets.registry import opener
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import CallFailed, TargetUnavailable
from mis_bench.workload import Task, build_workload
from targets import ask

OPTIONS = {"openai": {"token_ids": "true"}}

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# Fakes; documents and prompts are answered in any order.


def reranked(body: dict[str, Any]) -> dict[str, Any]:
    """`/v1/rerank` of vLLM and llama.cpp: Jina's and Cohere's reply."""
    results = [{"index": index, "relevance_score": len(text) / 100} for index, text in enumerate(body["documents"])]
    return {"results": results[::-1], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}


def reranked_list(body: dict[str, Any]) -> list[dict[str, Any]]:
    """`/v1/rerank` of SGLang: a bare list."""
    return [{"score": each["relevance_score"], "index": each["index"]} for each in reranked(body)["results"]]


def decided(body: dict[str, Any]) -> dict[str, Any]:
    """`/v1/decisions` as OpenAI has it, in the order of the questions."""
    answers = [{"type": "predicate", "probability": len(each["instructions"]) / 100} for each in body["questions"]]
    return {"answers": answers, "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}}


def answered(body: dict[str, Any]) -> dict[str, Any]:
    """`/v1/systemone` as TypeSafe has it, in an order of its own."""
    answers: dict[str, Any] = {}
    for name, question in reversed(body["questions"].items()):
        first, count = len(json.dumps(question)) / 1000, len(question.get("criteria", ()))
        answers[name] = {"type": "noul", "noul": first}
        if question["type"] == "choice":
            answers[name] = {"type": "choice", "probabilities": dict.fromkeys(question["criteria"], first)}
        if question["type"] == "score":
            answers[name] = {"type": "score", "score": first * (count - 1)}
    return {"answers": answers, "usage": {"input_tokens": 9, "x_cached_tokens": 4}}


def echoed(body: dict[str, Any]) -> dict[str, Any]:
    """`/v1/completions` with the prompts' own log-probabilities; the first token has none, a new one is the last."""
    new = [-50.0] * body["max_tokens"]
    rows = [[None, *(-token / 100 for token in prompt[1:]), *new] for prompt in body["prompt"]]
    choices = [{"index": index, "logprobs": {"token_logprobs": row}} for index, row in enumerate(rows)]
    return {"choices": choices[::-1], "usage": {"prompt_tokens": 9}}


ANSWERS = {"/v1/rerank": reranked, "/v1/decisions": decided, "/v1/completions": echoed, "/v1/systemone": answered}
NEW_TOKEN = {"max_tokens": 1, "temperature": 0}
AS_OURS = [
    ("rerank", "/v1/rerank", 4), ("decisions", "/v1/decisions", 4), ("loglikelihoods", "/v1/completions", None),
    ("systemone", "/v1/systemone", 4),
]  # fmt: skip
ASKED = [
    *((spec, task, path, {}, cached) for spec in ("mis", "vllm") for task, path, cached in AS_OURS),
    ("sglang", "rerank", "/v1/rerank", {"return_documents": False}, None),
    ("sglang", "loglikelihoods", "/v1/completions", NEW_TOKEN, None),
    ("openai", "loglikelihoods", "/v1/completions", NEW_TOKEN, None),
    ("llama-server", "rerank", "/v1/rerank", {}, 4),
    ("llama-server", "systemone", "/v1/systemone", {}, 4),
    ("systemone", "systemone", "/v1/systemone", {}, 4),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "task", "path", "fields", "cached_tokens"), ASKED)
async def test_servers_are_asked_for_tasks_as_they_document_them(
    fake: FakeServer, spec: str, task: Task, path: str, fields: dict[str, Any], cached_tokens: int | None
) -> None:
    fake.routes |= ANSWERS | {"/v1/rerank": reranked_list if spec == "sglang" else reranked}
    target = await opener(TargetSpec("t", f"{spec}={fake.url}", OPTIONS.get(spec, {}))).open([task])
    workload = build_workload(f"{task}-6-5-3")
    reply = await ask(target, workload)
    *_, body = fake.asked(path)
    salt = body.pop("x_cache_salt" if task == "systemone" else "cache_salt", None)
    assert (salt is not None) == (spec == "mis")  # the fake says that its vLLM is too old for salts
    assert body == workload.request | fields | {"model": "fake"}
    texts = [len(str(item)) / (1000 if task == "systemone" else 100) for item in workload.items]
    tokens = [np.mean([-token / 100 for token in item]) for item in workload.items if not isinstance(item, str)]
    np.testing.assert_allclose(reply.scores.ravel(), tokens or texts)
    assert reply.cached_tokens == cached_tokens
    await target.close()


@pytest.mark.parametrize(
    ("spec", "task", "message"),
    [
        ("sglang", "decisions", "decisions not supported by sglang: its /v1/decisions takes another body"),
        ("openai", "rerank", "rerank not supported by openai: it is asked for completions only"),
        ("openai", "systemone", "systemone not supported by openai: it is asked for completions only"),
        ("sglang", "systemone", "systemone not supported by sglang: it has no such route"),
        ("systemone", "rerank", "rerank not supported by systemone: it is asked for System One only"),
        ("openai", "decisions", "decisions not supported by openai"),
        ("llama-server", "score", "score not supported by llama-server: .* the target llama.cpp scores"),
        ("llama-server", "decisions", "decisions not supported by llama-server: it has no such route"),
        ("llama-server", "loglikelihoods", "loglikelihoods not supported by llama-server: it tells no log-prob"),
    ],
)
async def test_a_task_that_a_server_does_not_have_is_refused_by_name(
    fake: FakeServer, spec: str, task: Task, message: str
) -> None:
    found = opener(TargetSpec("t", f"{spec}={fake.url}", OPTIONS.get(spec, {})))
    with pytest.raises(TargetUnavailable, match=message):
        await found.open([task])
    able: Task = {"llama-server": "rerank", "systemone": "systemone"}.get(spec, "loglikelihoods")  # type: ignore[assignment]
    fake.routes |= ANSWERS
    target = await found.open([task, able])  # it is asked what it can do
    with pytest.raises(CallFailed, match=message) as caught:
        target.prepare(build_workload(f"{task}-6-5-3"))
    assert caught.value.reason == "rejected"
    await target.close()


async def test_a_server_of_system_one_is_taken_at_its_word(fake: FakeServer) -> None:
    """`transformers serve` lists no model that it has not loaded, and keeps nothing."""
    fake.routes |= {"/v1/systemone": answered, "/v1/models": {"data": []}, "/openapi.json": {"info": {"title": "T"}}}
    options = {"model": "a/folder", "stateless": "true"}
    target = await opener(TargetSpec("t", f"systemone={fake.url}", options)).open(["systemone"])
    await target.forget()
    await ask(target, build_workload("systemone-6-5-3"))
    assert fake.asked("/v1/systemone")[-1]["model"] == "a/folder"
    assert target.about.options["title"] == "T"
    await target.close()
    with pytest.raises(TargetUnavailable, match="it serves no model"):
        await opener(TargetSpec("t", f"systemone={fake.url}", {})).check()
    fake.routes["/v1/models"] = {"data": [{"id": "fake"}]}
    other = await opener(TargetSpec("t", f"systemone={fake.url}", {})).open(["systemone"])
    with pytest.raises(CallFailed, match="cannot clear its prefix cache"):
        await other.forget()
    await other.close()


NOT_ECHOED = [{"index": index, "logprobs": {"token_logprobs": [-1.0]}} for index in range(5)]


@pytest.mark.parametrize(
    ("task", "reply", "reason"),
    [
        ("rerank", {"results": None}, "missing_scores"),
        ("rerank", {"results": [{"index": 0, "relevance_score": 0.5}]}, "shape_mismatch"),
        ("rerank", {"results": [{"index": i, "relevance_score": None} for i in range(5)]}, "missing_scores"),
        ("rerank", [], "bad_json"),
        ("decisions", {"answers": [{"type": "refusal"}] * 5}, "missing_scores"),
        ("decisions", {"answers": []}, "shape_mismatch"),
        ("systemone", {"answers": {"q0": {"type": "noul"}}}, "missing_scores"),
        ("systemone", {"answers": {f"q{i}": {"noul": 0.5} for i in range(5)}}, "missing_scores"),
        ("loglikelihoods", {"choices": [{"index": i, "logprobs": None} for i in range(5)]}, "missing_scores"),
        ("loglikelihoods", {"choices": NOT_ECHOED}, "missing_scores"),
    ],
)  # fmt: skip
async def test_replies_that_are_not_all_there_are_refused(
    fake: FakeServer, task: Task, reply: Any, reason: str
) -> None:
    fake.routes |= ANSWERS
    target = await opener(TargetSpec("t", f"vllm={fake.url}", {})).open([task])
    fake.routes |= dict.fromkeys(ANSWERS, reply)
    with pytest.raises(CallFailed) as caught:
        await ask(target, build_workload(f"{task}-6-5-3"))
    assert caught.value.reason == reason
    await target.close()


def test_a_row_that_a_target_cannot_run_is_skipped_with_a_reason(fake: FakeServer, tmp_path: Path) -> None:
    fake.routes |= ANSWERS
    flags = ["--workload", "rerank-6-5-3", "--workload", "decisions-6-5-3", "--runs", "2", "--warmup-runs", "1"]
    arguments = ["run", "--target", f"llama-server={fake.url}", *flags, "--output", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    rows = summarize(read_results(tmp_path)).rows
    assert [(row.calls, row.status) for row in rows] == [(2, "warn"), (2, "ok"), (0, "skipped"), (0, "skipped")]
    assert rows[2].reasons == ["rejected: decisions not supported by llama-server: it has no such route."]
