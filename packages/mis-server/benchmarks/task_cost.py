"""Tasks against `/v1/score` on the same tokens, over HTTP, in turns.

`python packages/mis-server/benchmarks/task_cost.py [--divisor 8] [--rounds 6]`

A rerank of 100 documents of about 200 tokens behind a query of about 50, and 64 decisions on an input of about 2,000
tokens. The score request has the ids that the task makes of its texts, so the ratio is what templates, tokenisation and
replies cost. Queries differ from round to round, so none is found in the prefix cache. Prints items per second and the
median of the rounds' ratios.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from mis_core.requests import ScoreRequest
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.rerank.task import RERANK
from mis_core.tokenization import Tokenizer
from mis_testing.checkpoint import divided_checkpoint
from mis_testing.corpus import corpus
from mis_testing.server import running_server


def text_of(tokenizer: Tokenizer, tokens: int, seed: int) -> str:
    """Return words of about so many tokens, others for each seed."""
    words = " ".join(corpus()).split()
    order = np.random.default_rng(seed).permutation(np.resize(np.arange(len(words)), tokens))
    text = " ".join(words[place] for place in order)
    return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)[:tokens])


def rerank_body(tokenizer: Tokenizer, seed: int) -> dict[str, Any]:
    """Return 100 documents of 200 tokens and a query of 50."""
    documents = [text_of(tokenizer, 200, 1000 * seed + number) for number in range(100)]
    return {"query": text_of(tokenizer, 50, seed), "documents": documents}


def decisions_body(tokenizer: Tokenizer, seed: int) -> dict[str, Any]:
    """Return 64 questions about 2,000 tokens."""
    questions = [
        {"type": "predicate", "instructions": text_of(tokenizer, 12, 1000 * seed + number)} for number in range(64)
    ]
    return {"input": text_of(tokenizer, 2000, seed), "questions": questions}


def score_body(request: ScoreRequest) -> dict[str, Any]:
    """Return the request as `/v1/score` takes it; items that see less than the whole query get the rest themselves."""
    shared = int(request.context_lens.min())
    starts = request.item_starts
    items = [
        [*request.query[shared:seen].tolist(), *request.item_tokens[begin:end].tolist()]
        for seen, begin, end in zip(request.context_lens, starts[:-1], starts[1:], strict=True)
    ]
    labels = request.label_ids.tolist()
    body = {"query": request.query[:shared].tolist(), "items": items}
    return body | {"label_token_ids": labels if len(labels) > 1 else labels[0], "apply_softmax": request.apply_softmax}


def seconds(http: httpx.Client, path: str, body: Mapping[str, Any]) -> float:
    """Return how long a request took."""
    began = time.perf_counter()
    http.post(path, json=body).raise_for_status()
    return time.perf_counter() - began


def compare(
    name: str,
    http: httpx.Client,
    task: Task[Any, Any],
    path: str,
    make: Callable[[int], dict[str, Any]],
    parse: Callable[[Task[Any, Any], Mapping[str, Any]], ScoreRequest],
    rounds: int,
) -> float:
    """Print items per second of a task and of its tokens scored; return the median ratio."""
    ratios, rates = [], []
    for number in range(rounds + 1):
        body, twin = make(2 * number), make(2 * number + 1)  # of the same sizes, and neither finds the other's query
        scored = score_body(parse(task, twin))
        items = len(scored["items"])
        turns = [(path, body), ("/v1/score", scored)]
        took = {where: seconds(http, where, what) for where, what in (turns if number % 2 else reversed(turns))}
        if number:  # the first round is not counted
            ratios.append(took["/v1/score"] / took[path])
            rates.append((items / took[path], items / took["/v1/score"]))
    ratio = statistics.median(ratios)
    ours, score = (statistics.median(each) for each in zip(*rates, strict=True))
    sys.stdout.write(
        f"{name}: {ours:.1f} items/s, /v1/score {score:.1f} items/s, ratio {ratio:.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}, {rounds} rounds)\n"
    )
    return ratio


def main() -> int:
    """Run both comparisons; exit with 1 below 0.9."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--divisor", type=int, default=8, help="sizes of the 0.6B shape are divided by it")
    arguments.add_argument("--rounds", type=int, default=6)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        divided_checkpoint(model, "qwen3-0.6b", options.divisor)
        tokenizer = Tokenizer.from_pretrained(model)
        with running_server(model, "--served-model-name", "model", ready_timeout_s=600) as server:
            http = httpx.Client(base_url=server.base_url, timeout=600)
            info = http.get("/model_info").json()
            limits = Limits(
                context_length=info["context_length"], vocab_size=info["vocab_size"], architecture="Qwen3ForCausalLM"
            )

            def parse(task: Task[Any, Any], body: Mapping[str, Any]) -> ScoreRequest:
                (request,) = task.parse(body, tokenizer, limits, None).requests
                return request

            tasks = (
                ("rerank", RERANK, "/v1/rerank", rerank_body),
                ("decisions", DECIDE, "/v1/decisions", decisions_body),
            )
            ratios = [
                compare(name, http, task, path, lambda seed, make=make: make(tokenizer, seed), parse, options.rounds)
                for name, task, path, make in tasks
            ]
    return 0 if min(ratios) >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
