"""Of each task the requests that cost most to tokenise for each of their bytes, by the count that bounds them."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mis_core.errors import RequestError
from mis_core.tasks.classify.task import CLASSIFY
from mis_core.tasks.classify.token_task import TOKEN_CLASSIFY
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tasks.served import tasks_of
from mis_core.tasks.text.chat import CHAT
from mis_core.tasks.text.completion import COMPLETE
from mis_core.tokenization import Meter, Tokenizer, TooMuchWork
from mis_server.tokenizers.pool import SMALL

_PATHS: dict[str, Task[Any, Any]] = {
    "/v1/score": SCORE,
    "/v1/rerank": RERANK,
    "/v1/decisions": DECIDE,
    "/v1/completions": COMPLETE,
    "/v1/chat/completions": CHAT,
    "/v1/classify": CLASSIFY,
    "/v1/token_classify": TOKEN_CLASSIFY,
}
_KEPT = 2  # of each route and lane


def costliest_requests(model: str, small: bool, head: bool) -> list[tuple[str, bytes]]:
    """Return paths and bodies: of every route that tokenises, the worst of those for either lane.

    Args:
        model: The checkpoint.
        small: Whether they are for machines that are to be spared.
        head: Whether the model has a classification head.
    """
    tokenizer = Tokenizer.from_pretrained(model)
    limits = Limits(context_length=4096, vocab_size=tokenizer.vocab_size)
    limits = replace(limits, max_text_characters=limits.max_text_characters // (64 if small else 1))
    if head:
        limits = replace(limits, head_labels=("no", "yes"))
    found: list[tuple[str, bytes]] = []
    for path, task in _PATHS.items():
        if task.name not in tasks_of(tokenizer, limits):
            continue
        bodies = [json.dumps(body).encode() for body in _candidates(path, limits.max_text_characters)]
        ranked = sorted(bodies, key=lambda body: -cost(task, body, tokenizer, limits) / len(body))
        for lane in (True, False):
            found += [(path, body) for body in ranked if (len(body) <= SMALL) == lane][:_KEPT]
    texts = [json.dumps({"prompt": "-" * size}).encode() for size in (SMALL - 16, limits.max_text_characters)]
    return found + [("/tokenize", text) for text in texts]


def cost(task: Task[Any, Any], body: bytes, tokenizer: Tokenizer, limits: Limits) -> int:
    """Return what tokenising a body costs, whatever becomes of it."""
    meter = Meter(limits.max_work)
    with contextlib.suppress(RequestError, TooMuchWork):
        task.parse(json.loads(body), tokenizer.metered(meter), limits, None)
    return meter.cost


def _candidates(path: str, most: int) -> Iterator[dict[str, Any]]:
    """Yield bodies whose texts are read as often as the limit on characters allows, in different shapes."""
    for length in (200, 800, 3200):  # of what is read again with each item: a run without a boundary
        run, count = "-" * length, max(most // (length + 100), 1)
        match path:
            case "/v1/score":
                yield {"query": f"a {run}", "items": ["x"] * min(count, 20_000), "label_token_ids": [1]}
                yield {"query": run, "items": ["x"] * min(count, 20_000), "label_token_ids": [1], "item_first": True}
            case "/v1/rerank":
                documents = min(count, 20_000)
                yield {"query": f"a {run}", "documents": ["x"] * documents}
                yield {"query": f"a {run}", "documents": [run] * (documents // 2 + 1)}
                yield {"query": "word " * (3900 * length // 3200), "documents": ["three more words"] * documents}
            case "/v1/decisions":
                asked = {"type": "predicate", "instructions": "x"}
                levels = {"type": "choice", "instructions": "x", "choices": [{"value": f"{n}"} for n in range(20)]}
                yield {"input": f"a {run}", "questions": [asked] * 400}
                yield {"input": f"a {run}", "questions": [levels] * min(count, 400), "choice_order": "independent"}
            case "/v1/completions":
                yield {"prompt": [run] * count, "max_tokens": 1, "echo": True, "logprobs": 1}
                yield {"prompt": ["a"] * min(most // 8, 20_000), "max_tokens": 1}
            case "/v1/chat/completions":
                yield {"messages": [{"role": "user", "content": run}] * min(count, 4096), "max_tokens": 1}
                yield {"messages": [{"role": "user", "content": ""}] * 4096, "max_tokens": 1}
            case "/v1/classify" | "/v1/token_classify":
                yield {"input": [run] * min(count, 20_000)}
                yield {"input": ["a"] * min(most // 8, 20_000)}
