"""Requests that multiply: on every route, in every field that makes many of few, what the engine gets is bounded."""

import contextlib
import fnmatch
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from mis_core.config import EngineConfig
from mis_server.schemas.system_one import PATHS
from mis_server.settings import ServerConfig
from route_bodies import BODIES, SHOWING, TEXT, WITHOUT_TEXT, Body, paths, serves
from served_app import served_app

ITEMS, LABELS, SEQUENCES, TOKENS = 20, 6, 12, 4000
LIMITS = {
    "max_items_per_request": ITEMS,
    "max_labels_per_request": LABELS,
    "max_sequences_per_request": SEQUENCES,
    "max_request_tokens": TOKENS,
}
CODES = {"too_many_items", "too_many_labels", "too_many_sequences", "too_many_tokens"}
SIZES = (1, 2, 4, 6, 7, 12, 13, 20, 21, 128, 3000)


def question(choices: int) -> Body:
    return {"type": "choice", "instructions": TEXT, "choices": [{"value": str(each)} for each in range(choices)]}


def drawing(**fields: Any) -> Callable[[int], Body]:
    """Many answers, by the field that is a function: what the other fields are."""
    return lambda size: {name: value(size) if callable(value) else value for name, value in fields.items()}


def texts(size: int) -> list[str]:
    return [TEXT] * size


def draws(size: int) -> int:
    return min(size, 128)


def by_ids(size: int, **question: Any) -> Body:
    return {"questions": {str(each): {"type": "noul", "instructions": TEXT} | question for each in range(size)}}


def named(size: int) -> dict[str, None]:
    return dict.fromkeys(map(str, range(max(min(size, 21), 2))))


SYSTEM_ONE: list[Callable[[int], Body]] = [by_ids, lambda size: by_ids(1, type="choice", criteria=named(size))]

FAN_OUTS: dict[str, list[Callable[[int], Body]]] = {
    "/api/alpha/decisions": SYSTEM_ONE,
    "*systemone": SYSTEM_ONE,
    "*systemone/batch": [*SYSTEM_ONE, lambda size: {"states": texts(size)}],
    "*score": [lambda size: {"items": texts(size), "labels": ["yes"]}, lambda size: {"labels": ["yes"] * size}],
    "*rerank": [lambda size: {"documents": texts(size)}],
    "*decisions": [
        lambda size: {
            "questions": [{"type": "predicate", "name": str(each), "instructions": TEXT} for each in range(size)]
        },
        lambda size: {"questions": [question(max(min(size, 21), 2))]},
    ],
    "*chat/completions": [
        drawing(n=draws, max_tokens=1),
        drawing(n=draws, max_tokens=2),
        drawing(n=draws, max_tokens=None),
        drawing(labels=lambda size: ["yes"] * size),
    ],
    "*completions": [
        drawing(prompt=texts, max_tokens=0, echo=True),
        drawing(prompt=texts, max_tokens=1),
        drawing(prompt=texts, max_tokens=2),
        drawing(prompt=texts, max_tokens=None),
        *[drawing(n=draws, max_tokens=count, prompt=TEXT) for count in (1, 2, None)],
        *[drawing(n=draws, max_tokens=count, prompt=[[5, 6], [7], [8]]) for count in (1, 2, None)],
        *[drawing(best_of=draws, max_tokens=count, prompt=[TEXT, TEXT]) for count in (1, 2)],
        *[drawing(prompt=texts, n=draws, max_tokens=count) for count in (1, 2)],
    ],
    "*classify": [lambda size: {"input": texts(size)}],
    "*tokenize": [],  # one text or one list, as long as it is
}
"""For each route, by a pattern of its path of which the first fits, what multiplies, by how much."""


def fan_outs_of(path: str) -> list[Callable[[int], Body]]:
    return next(found for pattern, found in FAN_OUTS.items() if fnmatch.fnmatch(path, pattern))


def test_every_route_is_here() -> None:
    app = served_app(None, ServerConfig(engine=EngineConfig(model="m")), None)
    for path in paths(app, "POST") - WITHOUT_TEXT:
        assert path in BODIES.keys() | SHOWING.keys()
        fan_outs_of(path)


@pytest.fixture(scope="module")
def limited(shared: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: shared(**LIMITS)


def under_way(http: httpx.Client) -> set[str]:
    lines = http.get("/metrics").text.splitlines()
    return {line for line in lines if line.startswith(("mis_num_tokens_under_way ", "mis_num_sequences_under_way "))}


def refusal(reply: httpx.Response) -> tuple[int, str]:
    said = reply.json()
    return reply.status_code, said["error"]["code"] if "error" in said else said["detail"][0]["type"]


IDLE = {"mis_num_tokens_under_way 0.0", "mis_num_sequences_under_way 0.0"}
CASES = [(path, number) for path in BODIES for number in range(len(fan_outs_of(path)))]


@pytest.mark.parametrize(("path", "number"), CASES, ids=[f"{path}-{number}" for path, number in CASES])
def test_what_a_request_multiplies_to_is_bounded(limited: Callable[..., Any], path: str, number: int) -> None:
    http, pretended = limited()
    pretended.info = msgspec.structs.replace(pretended.info, **serves(path))
    is_batch = path.endswith("/batch")
    answered: set[bool] = set()
    for size in SIZES:
        pretended.requests, pretended.sequences = [], []
        reply = http.post(path, json=BODIES[path] | fan_outs_of(path)[number](size))
        answered.add(reply.status_code == 200)
        if reply.status_code != 200:
            assert refusal(reply) in {(422 if path in PATHS else 400, code) for code in CODES}, size
            assert not pretended.requests
            assert not pretended.sequences
            continue
        drawn = sum(each.num_items for each in pretended.requests if each.sampling is not None)
        assert len(pretended.sequences) <= SEQUENCES
        assert drawn <= (ITEMS if drawn == len(pretended.requests) else SEQUENCES)
        assert len(pretended.requests) <= ITEMS
        for each in [[one] for one in pretended.requests] if is_batch else [pretended.requests]:
            assert sum(one.num_items for one in each) <= ITEMS
            assert sum(one.prompt_tokens for one in each) <= TOKENS
        assert max((each.label_ids.shape[1] for each in pretended.requests), default=0) <= LABELS
        assert is_batch or len(reply.json().get("choices", ())) <= ITEMS
    assert answered == {True, False}, "the sizes are on both sides of a limit"
    assert under_way(http) == IDLE


@contextlib.contextmanager
def held(http: httpx.Client, pretended: Any, path: str, **fields: Any) -> Iterator[None]:
    """Have a request under way, which the engine does not answer."""
    pretended.hangs = True
    pretended.started.clear()
    with httpx.Client(base_url=http.base_url, trust_env=False, timeout=1) as other:

        def ask() -> None:
            with contextlib.suppress(httpx.ReadTimeout):
                other.post(path, json=BODIES[path] | fields)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert pretended.started.wait(60)
            pretended.hangs = False
            yield
        finally:
            asking.join()


WRITING = [path for path in BODIES if path.endswith("completions")]


@pytest.mark.parametrize("path", WRITING)
@pytest.mark.parametrize("count", [1, 2], ids=["scored", "written"])
def test_answers_of_all_requests_are_bounded(shared: Callable[..., Any], path: str, count: int) -> None:
    http, pretended = shared(max_queued_sequences=10)
    prompt = {"prompt": "a"} if "prompt" in BODIES[path] else {}
    with held(http, pretended, path, n=8, max_tokens=2, **prompt):
        assert "mis_num_sequences_under_way 8.0" in under_way(http)
        reply = http.post(path, json=BODIES[path] | prompt | {"n": 3, "max_tokens": count})
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert http.post(path, json=BODIES[path] | prompt | {"n": 1, "max_tokens": count}).status_code == 200


@pytest.mark.parametrize("path", WRITING)
def test_tokens_to_be_generated_count_before_they_are(shared: Callable[..., Any], path: str) -> None:
    http, pretended = shared(max_queued_tokens=1000)
    prompt = {"prompt": "a"} if "prompt" in BODIES[path] else {}
    with held(http, pretended, path, n=8, max_tokens=80, **prompt):
        for fields in ({"n": 2, "max_tokens": 200}, {"n": 60, "max_tokens": 5}):
            reply = http.post(path, json=BODIES[path] | prompt | fields)
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full"), fields
        assert http.post(path, json=BODIES[path] | prompt | {"max_tokens": 5}).status_code == 200
