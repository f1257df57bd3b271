"""What a request is routed by, and how many replicas there should be. None of this needs a cluster."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mis_core.errors import ConfigError
from mis_server.ray import build_app
from mis_server.ray.routing import routing_key
from mis_server.ray.serving import TokenPolicy


def key(body: Any, **headers: str) -> str | None:
    return routing_key(headers, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_requests_with_one_query_have_one_key() -> None:
    query = 'Frage "猫" 🐱'
    raw = json.dumps({"items": ["b"] * 1000, "query": query}, ensure_ascii=False).encode()
    assert key({"query": query, "items": ["a"]}) == key(raw)
    assert key(b'{"query": [1,2],"items":[]}') == key(b'{ "items": [[3]], "query": [ 1, 2 ] }')
    assert key({"query": "x" * 1_000_000}) == key({"query": "x" * 1_000_000, "documents": ["d"]})
    assert key({"messages": [{"role": "system", "content": "s"}]}) == key(
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    )


def test_others_have_others() -> None:
    bodies: list[Any] = [{"query": "a"}, {"query": "b"}, {"query": [1]}, {"query": "a", "cache_salt": "s"}]
    bodies += [
        {"input": "i"},
        {"prompt": "p"},
        {"state": "s"},
        {"state": {"a": 1}},
        {"states": ["s"]},
        {"state": "s", "x_cache_salt": "s"},
    ]
    keys = {key(body) for body in bodies}
    assert len(keys) == len(bodies)
    assert None not in keys


def test_a_name_of_the_client_counts_first() -> None:
    assert (
        key({"query": "a"}, **{"x-mis-prefix": "n"})
        == key({"query": "b"}, **{"x-mis-prefix": "n"})
        != key({"query": "a"})
    )


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"items": []}', b'"text"', b"\xff", b"[" * 100_000])
def test_any_replica_will_do_for_what_shares_nothing(body: bytes) -> None:
    assert key(body) is None


@pytest.mark.parametrize(("tokens", "replicas"), [([], 1), ([0, 0], 1), ([90, 110], 2), ([90, 111], 3), ([500], 5)])
def test_there_are_as_many_replicas_as_the_tokens_under_way_need(tokens: list[int], replicas: int) -> None:
    context = SimpleNamespace(aggregated_metrics={"tokens_under_way": dict(enumerate(tokens))})
    assert TokenPolicy(tokens_per_replica=100)(cast(Any, context)) == (replicas, {})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "model is missing"),
        ({"model": "m", "port": 1}, "port is not an option of replicas"),
        ({"model": "m", "max_queued_requests": "many"}, "max_queued_requests: Input should be a valid integer"),
        ({"model": "m", "dtype": "float8"}, "dtype must be one of"),
        ({"model": "m", "replica": 3}, "Unknown option 'replica'"),
    ],
)
def test_a_wrong_option_is_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_app(args)
