"""All routes of one server at once: no answer depends on the others, nothing compiles, nothing leaks."""

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mis_testing.corpus import corpus
from mis_testing.server import RunningServer, running_server

Request = tuple[str, dict[str, Any]]
Make = Callable[[random.Random], dict[str, Any]]
WORDS = " ".join(corpus()).split()
VOCABULARY = 300
MODELS = {"language model": {}, "classification head": {"head_labels": ("no", "yes")}}


@pytest.fixture(scope="module", params=["language model", pytest.param("classification head", marks=pytest.mark.full)])
def served(request: pytest.FixtureRequest, checkpoint_factory: Callable[..., Path]) -> Iterator[RunningServer]:
    """A server that compiled all it needs, with hardly any room in its cache."""
    model = checkpoint_factory("qwen3", **MODELS[request.param])
    flags = ("--chunked-prefill-size", "256", "--context-length", "1024", "--max-total-tokens", "2048")
    with running_server(model, "--served-model-name", "m", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def http(served: RunningServer) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=32)
    with httpx.Client(base_url=served.base_url, timeout=300, trust_env=False, limits=limits) as client:
        yield client


def text(rng: random.Random, most: int) -> str:
    """Words, fewer rather than more."""
    return " ".join(rng.choices(WORDS, k=1 + int(most * rng.random() ** 3)))


def texts(rng: random.Random, most: int, length: int) -> list[str]:
    return [text(rng, length) for _ in range(rng.randint(1, most))]


def ids(rng: random.Random, most: int) -> list[int]:
    return rng.choices(range(VOCABULARY), k=1 + int(most * rng.random() ** 3))


def score(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        query, items = text(rng, 60), texts(rng, 20, 8)
    else:
        query, items = ids(rng, 500), [ids(rng, 40) for _ in range(rng.randint(1, 20))]
    return {
        "query": query,
        "items": items,
        "apply_softmax": rng.random() < 0.5,
        "item_first": rng.random() < 0.3,
    }


def labelled_score(rng: random.Random) -> dict[str, Any]:
    labels = {"label_token_ids": ids(rng, 8)} if rng.random() < 0.5 else {"labels": [" yes", " no", "a harbour wall"]}
    return score(rng) | labels | {"return_token_logprobs": rng.random() < 0.2}


def rerank(rng: random.Random) -> dict[str, Any]:
    return {
        "query": text(rng, 20),
        "documents": texts(rng, 12, 20),
        "return_documents": rng.random() < 0.5,
        "max_tokens_per_doc": rng.randint(1, 60),
    }


def question(rng: random.Random) -> dict[str, Any]:
    asked = {"instructions": text(rng, 8)}
    kind = rng.choice(["predicate", "choice", "score"])
    if kind == "predicate":
        return asked | {"type": kind}
    several = [f"{number} {text(rng, 3)}" for number in range(rng.randint(2, 8))]
    if kind == "choice":
        return asked | {"type": kind, "choices": [{"value": each} for each in several]}
    return asked | {"type": kind, "levels": [{"label": each} for each in several]}


def decisions(rng: random.Random) -> dict[str, Any]:
    questions = [question(rng) for _ in range(rng.randint(1, 6))]
    order = rng.choice(["given", "independent"])
    return {"input": text(rng, 50), "questions": questions, "choice_order": order}


def system_one(rng: random.Random) -> dict[str, Any]:
    questions: dict[str, Any] = {}
    for number in range(rng.randint(1, 6)):
        several = [f"{each} {text(rng, 3)}" for each in range(rng.randint(2, 8))]
        asked: Any = {"type": rng.choice(["noul", "choice", "score"]), "instructions": text(rng, 8)}
        if asked["type"] == "choice":
            asked["criteria"] = dict.fromkeys(several)
        elif asked["type"] == "score":
            asked["criteria"] = several
        questions[f"{number} {text(rng, 2)}"] = asked
    return {"state": {"text": text(rng, 50)}, "questions": questions}


def system_one_batch(rng: random.Random) -> dict[str, Any]:
    asked = system_one(rng)
    return {"states": [asked["state"], *texts(rng, 3, 50)], "questions": asked["questions"]}


def sampling(rng: random.Random) -> dict[str, Any]:
    """New tokens, the same whenever they are asked for again."""
    return {
        "max_tokens": rng.choice([1, 1, 2, 12]),
        "presence_penalty": rng.choice([0, 0.5]),
        "seed": rng.randrange(2**31),
        "temperature": rng.choice([0, 0.7, 1.3]),
        "top_p": rng.choice([1, 0.8]),
        "logit_bias": {str(token): rng.uniform(-5, 5) for token in ids(rng, 4)},
        "n": rng.randint(1, 4),
    }


def completions(rng: random.Random) -> dict[str, Any]:
    prompts = texts(rng, 4, 40) if rng.random() < 0.5 else [ids(rng, 400) for _ in range(rng.randint(1, 4))]
    return {"prompt": prompts, "echo": rng.random() < 0.5, "logprobs": rng.randint(0, 20)} | sampling(rng)


def chat(rng: random.Random) -> dict[str, Any]:
    messages = [{"role": "system", "content": text(rng, 20)}, {"role": "user", "content": text(rng, 60)}]
    shown = {"logprobs": True, "top_logprobs": rng.randint(0, 20), "label_token_ids": ids(rng, 5)}
    return {"messages": messages} | shown | sampling(rng)


def classify(rng: random.Random) -> dict[str, Any]:
    return {"input": texts(rng, 5, 30), "use_activation": rng.random() < 0.5}


def tokenize(rng: random.Random) -> dict[str, Any]:
    return {"prompt": text(rng, 200)}


LANGUAGE: dict[str, Make] = {
    "/v1/score": labelled_score,
    "/v1/rerank": rerank,
    "/v1/decisions": decisions,
    "/v1/systemone": system_one,
    "/v1/systemone/batch": system_one_batch,
    "/v1/completions": completions,
    "/v1/chat/completions": chat,
    "/tokenize": tokenize,
}
HEAD: dict[str, Make] = {"/v1/score": score, "/v1/rerank": rerank, "/v1/classify": classify, "/tokenize": tokenize}


@pytest.fixture(scope="module")
def routes(http: httpx.Client) -> dict[str, Make]:
    """What the model can do: each route's bodies."""
    (model,) = http.get("/v1/models").json()["data"]
    return HEAD if "classify" in model["tasks"] else LANGUAGE


def answers(http: httpx.Client, requests: Sequence[Request], at_once: int) -> list[list[dict[str, Any]]]:
    """Send requests, so many at once, and return the lines that each was told, without what may differ."""

    def answer(request: Request) -> list[dict[str, Any]]:
        path, body = request
        reply = http.post(path, json=body)
        assert reply.status_code == 200, f"{path} {body}: {reply.text}"
        lines = [json.loads(line) for line in reply.content.splitlines()]
        return [{key: value for key, value in line.items() if key not in ("id", "created", "usage")} for line in lines]

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(answer, requests))


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_answer_is_the_same_alone_and_among_16_of_all_kinds(
    http: httpx.Client, routes: dict[str, Make], seed: int
) -> None:
    """Every float to its last bit: JSON has the shortest digits that name it."""
    rng = random.Random(seed)
    kinds = list(routes.items())
    requests = [(path, make(rng)) for path, make in (kinds * 16)[:17]]
    rng.shuffle(requests)
    chosen = {path: place for place, (path, _) in enumerate(requests) if path != "/tokenize"}
    alone = {place: answers(http, [requests[place]], 1)[0] for place in chosen.values()}
    among = answers(http, requests, 17)
    for path, place in chosen.items():
        assert among[place] == alone[place], path


def gauges(http: httpx.Client) -> dict[str, float]:
    """Every metric without labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def resident_mib(server: RunningServer) -> dict[int, float]:
    """Memory of the server's processes by their ids."""
    page = os.sysconf("SC_PAGE_SIZE") / 2**20
    pids = [server.process.pid, *server.children]
    return {pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids}


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
def test_a_mix_of_all_routes_compiles_nothing_and_leaks_nothing(
    served: RunningServer, http: httpx.Client, routes: dict[str, Make], count: int
) -> None:
    rng = random.Random(count)
    kinds = list(routes.items())
    requests = [(path, make(rng)) for path, make in rng.choices(kinds, k=count)]
    answers(http, requests[: count // 2], 8)
    before = resident_mib(served)
    answers(http, requests[count // 2 :], 8)
    after = resident_mib(served)
    grown = {pid: mib - before[pid] for pid, mib in after.items()}
    assert max(grown.values()) < 64, grown
    found = gauges(http)
    assert found["mis_engine_compilations_total"] == found["mis_engine_restarts_total"] == 0
    assert found["mis_kv_cache_held_pages"] == 0
    assert found["mis_kv_cache_cached_pages"] + found["mis_kv_cache_free_pages"] == found["mis_kv_cache_pages"]
    assert found["mis_prefix_cache_evicted_pages_total"] > 0
