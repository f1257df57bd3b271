"""Requests of every kind, asked by several callers at once; who answered, and what came from the cache."""

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import httpx

from gateway import Gateway

KINDS = ("text", "ids", "cjk", "items first", "rerank", "100 KB")
_WORDS = ("the", "a", "cat", "dog", "sleeps", "runs", "film", "review", "is", "was", "good", "bad", "long", "never")
_CJK = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
# Each is one token of the tiny tokenizer, so that 100 KB of them are what it can read.
_LONG_TOKENS = ("<|object_ref_start|>", "<|object_ref_end|>", "<|vision_start|>", "<|quad_start|>")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: the number of its query, its kind, and what is sent."""

    query: int
    kind: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, times in seconds since the first was asked."""

    query: int
    kind: str
    status: int
    replica: str | None
    cached_tokens: int
    began_s: float
    seconds: float
    reply: dict[str, Any]
    headers: dict[str, str]

    @property
    def scores(self) -> Any:
        """What was asked for: scores in the order of the items."""
        if "scores" in self.reply:
            return self.reply["scores"]
        return sorted((each["index"], each["relevance_score"]) for each in self.reply["results"])


def ask_of(query: int, kind: str, turn: int) -> Ask:
    """Return a request about a query, always the same; its second turn may be written in another way."""
    chance = random.Random(f"{query} {kind}")
    words = " ".join(chance.choices(_WORDS, k=120))
    ids = [chance.randrange(1, 900) for _ in range(160)]
    body: dict[str, Any] = {
        "query": f"{query} {words}",
        "items": [" yes", " no", " maybe so"],
        "label_token_ids": [7, 8],
    }
    options: dict[str, Any] = {}
    path = "/v1/score"
    if kind == "ids":
        body |= {"query": ids, "items": [[5, 6], [9]]}
        options = {"separators": (",", ":")} if turn else {}
    elif kind == "cjk":
        body["query"] = f"{query} 😀" + "".join(chance.choices(_CJK, k=60))
        options = {"ensure_ascii": not turn}
    elif kind == "items first":
        items = ["".join(chance.choices(_LONG_TOKENS, k=450)) for _ in range(2)]  # 16 KB
        body = {"items": items, "query": body["query"], "label_token_ids": [7, 8], "cache_salt": "salt"}
        body = dict(reversed(body.items())) if turn else body
    elif kind == "rerank":
        path, body = "/v1/rerank", {"query": body["query"], "documents": ["It rains.", "Cats sleep all day."]}
    elif kind == "100 KB":
        body["query"] = f"{query} " + "".join(chance.choices(_LONG_TOKENS, k=100_000 // 18))
    return Ask(query, kind, path, json.dumps(body, **options).encode())


def ask_of_ids(query: int, ids: list[int]) -> Ask:
    """Return a request about a query of these ids, with two items."""
    body = {"query": ids, "items": [[5, 6], [9]], "label_token_ids": [7, 8]}
    return Ask(query, "ids", "/v1/score", json.dumps(body).encode())


def mixed(queries: int, long_queries: int) -> list[str]:
    """Return the kind of every query: all kinds in turn, but only so many of 100 KB."""
    others = itertools.cycle(KINDS[:-1])
    return ["100 KB" if number < long_queries else next(others) for number in range(queries)]


def ask_all(
    url: str, asks: Sequence[Ask], callers: int, after: Callable[[int], None] = lambda number: None
) -> list[Answer]:
    """Ask in this order, by so many callers, each with a connection of its own; answers in the order of asking.

    Args:
        url: Base URL.
        asks: Requests.
        callers: How many ask at once.
        after: Called with the number of requests that have been asked, before each, by one caller at a time.
    """
    queue: Iterator[tuple[int, Ask]] = iter(list(enumerate(asks)))
    lock = threading.Lock()
    answers: list[Answer | None] = [None] * len(asks)
    start = monotonic()

    def call(_: int) -> None:
        with _client(url) as client:
            while True:
                with lock:
                    number, ask = next(queue, (-1, asks[0]))
                    if number < 0:
                        return
                    after(number)
                answers[number] = _ask(client, ask, start)

    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(call, range(callers)))
    return [each for each in answers if each is not None]


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, verify=False, timeout=300)


def _ask(client: httpx.Client, ask: Ask, start: float) -> Answer:
    began = monotonic()
    reply = client.post(ask.path, content=ask.body, headers={"content-type": "application/json"})
    fields = reply.json()
    cached = fields["usage"]["prompt_tokens_details"]["cached_tokens"] if reply.status_code == 200 else 0
    replica = reply.headers.get("x-mis-replica")
    end = monotonic()
    return Answer(
        ask.query, ask.kind, reply.status_code, replica, cached, began - start, end - began, fields, dict(reply.headers)
    )


def owners(gateway: Gateway, asks: Sequence[Ask]) -> dict[int, str]:
    """Return the replica that each query belongs to, as one caller finds it, whom no bound sends elsewhere.

    The replica refuses these requests: they have the query, but no items. Each is asked when HAProxy has ended the
    one before, which it may still count some moments after its answer, and then send the next past its owner.
    """
    found: dict[int, str] = {}
    with _client(gateway.url) as client:
        for ask in {ask.query: ask for ask in asks}.values():
            gateway.wait_until_idle()
            answer = _ask(client, _without_items(ask), monotonic())
            assert answer.status == 400, answer.reply
            assert answer.replica is not None
            found[answer.query] = answer.replica
    return found


def _without_items(ask: Ask) -> Ask:
    fields = json.loads(ask.body)
    fields = {name: [] if name in ("items", "documents") else value for name, value in fields.items()}
    return replace(ask, body=json.dumps(fields).encode())
