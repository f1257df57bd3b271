"""The key of a body is that of its query, however the body is written."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import running_gateway
from mis_testing.server import free_port

CONFIG = Path(__file__).parent / "support" / "keys.cfg"
SEEN = 16_384  # bytes of a query that make the key
BUFFER = 262_144

Tell = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def tell() -> Iterator[Tell]:
    """`tell(body)`: where its key comes from, and the key."""
    address = f"127.0.0.1:{free_port()}"
    with (
        running_gateway([], more=[CONFIG], MIS_KEYS_ADDRESS=address),
        httpx.Client(base_url=f"http://{address}", trust_env=False, verify=False, timeout=60) as client,
    ):

        def told(body: Any, **headers: str) -> tuple[str, str]:
            content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else dumped(body)
            words = client.post("/", content=content, headers=headers).raise_for_status().text.split(" ")
            return words[0], words[1]

        yield told


def dumped(body: Any, **options: Any) -> bytes:
    return json.dumps(body, **options).encode("utf-8", "surrogatepass")


# Surrogates that are no pair are no characters, and no client's JSON has them raw.
texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40) | st.text(
    '\\"u0041/{}[],: ', min_size=1
)
ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=40)
items = st.lists(texts | ids, max_size=5)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=texts | ids, others=items, salt=st.none() | texts, chance=st.randoms(use_true_random=False))
def test_the_same_query_has_the_same_key_however_it_is_written(
    tell: Tell, query: Any, others: Any, salt: str | None, chance: random.Random
) -> None:
    fields = {"query": query, "items": others, "label_token_ids": [1, 2], "apply_softmax": True, "temperature": 1.0}
    fields |= {} if salt is None else {"cache_salt": salt}
    shuffled = list(fields.items())
    chance.shuffle(shuffled)
    plain = dumped(fields, separators=(",", ":"), ensure_ascii=False)
    other = dumped(dict(shuffled) | {"items": others * 2}, indent=chance.choice([None, 1, "\t"]))
    every = "".join(f"\\u{ord(unit):04x}" for unit in utf16(query)) if isinstance(query, str) else ""
    field = b'"query":'
    raw = field + dumped(query, ensure_ascii=False)
    escaped = plain.replace(raw, field + f'"{every}"'.encode(), 1) if every else plain
    source, key = tell(plain)
    assert source == "query"
    assert len(key) == 16
    assert tell(other) == tell(escaped) == (source, key)


def utf16(text: str) -> list[str]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [chr(int.from_bytes(encoded[i : i + 2])) for i in range(0, len(encoded), 2)]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts | ids, second=texts | ids, salts=st.lists(st.none() | texts, min_size=2, max_size=2))
def test_other_queries_and_salts_have_other_keys(tell: Tell, first: Any, second: Any, salts: list[str | None]) -> None:
    bodies = [
        {"query": query} | ({} if salt is None else {"cache_salt": salt})
        for query, salt in zip((first, second), salts, strict=True)
    ]
    keys = [tell(body)[1] for body in bodies]
    assert (keys[0] == keys[1]) == (bodies[0] == bodies[1])


@pytest.mark.parametrize(
    "query",
    ["x" * 100_000, "北京" * 16_000, "😀" * 8_000, list(range(14_000)), "\\" * 50_000],
    ids=lambda q: str(q)[:8],
)
@pytest.mark.parametrize("ahead", [0, 40_000])
def test_long_queries_have_their_key_also_behind_items(tell: Tell, query: Any, ahead: int) -> None:
    body = {"items": ["i" * ahead], "query": query}
    known = tell({"query": query})
    assert known[0] == "query"
    for options in ({}, {"ensure_ascii": False}):
        content = dumped(body, **options)
        assert len(content) < BUFFER - 8192, "all of it is seen"
        assert tell(content) == known


def test_of_a_query_that_is_cut_the_first_part_is_the_key(tell: Tell) -> None:
    query = "北" * BUFFER
    known = tell({"query": "北" * SEEN})
    assert known[0] == "query"
    assert tell({"query": query}) == tell(dumped({"query": query}, ensure_ascii=False)) == known
    assert tell({"items": ["i" * (BUFFER // 2)], "query": query}) == known


def test_what_is_not_seen_is_told_apart_from_what_is_not_there(tell: Tell) -> None:
    assert tell({"items": ["i" * BUFFER], "query": "q"}) == ("unseen", "")
    assert tell({"items": ["i" * (BUFFER - 8192)], "query": "q" * BUFFER}) == ("unseen", "")
    for body in (
        "",
        "[]",
        "{}",
        "no",
        "{1",
        '{"a" 1}',
        '{"items": []}',
        b"\xff\xfe{",
        '{"items": ["query", {"query": 1}]}',
    ):
        assert tell(body) == ("absent", ""), body
    for body in ("{", '{"que', '{"query"', '{"query":', '{"query": "q', '{"items": [', '{"query": [1, 2'):
        assert tell(body) == ("unseen", ""), body


@pytest.mark.parametrize("name", ["query", "input", "state", "states", "prompt", "messages"])
def test_every_task_has_a_field_that_is_the_key(tell: Tell, name: str) -> None:
    assert tell({name: "a"}) == tell({"query": "a"})


def test_a_state_may_be_structured_and_salts_are_alike(tell: Tell) -> None:
    state = {"query": "not the key", "text": ["a", {"b": 1}]}
    source, key = tell({"state": state, "questions": {}})
    assert source == "query"
    assert tell({"questions": {"query": {"state": 1}}, "state": state}) == (source, key)
    assert tell({"state": "other"})[1] != key
    assert tell({"state": "a", "x_cache_salt": "s"}) == tell({"query": "a", "cache_salt": "s"})


def test_a_compressed_body_has_the_key_of_its_header_only(tell: Tell) -> None:
    body = {"state": "a"}
    assert tell(body, **{"content-encoding": "zstd"}) == ("unseen", "")
    assert tell(body, **{"content-encoding": "identity"}) == tell(body)
    assert tell(body, **{"content-encoding": "gzip", "x-mis-prefix": "t"}) == tell(body, **{"x-mis-prefix": "t"})


def test_the_header_decides_alone(tell: Tell) -> None:
    source, key = tell({"query": "a"}, **{"x-mis-prefix": "tenant 1"})
    assert source == "header"
    assert tell({"query": "b", "cache_salt": "c"}, **{"x-mis-prefix": "tenant 1"}) == (source, key)
    assert tell({"query": "a"}, **{"x-mis-prefix": "tenant 2"}) != (source, key)
    assert tell({"query": "a"}, **{"x-mis-prefix": ""})[0] == "query"


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200) | st.text('{}[]",:\\u00 query', max_size=60))
def test_nonsense_has_no_key_or_one_and_harms_nothing(tell: Tell, body: bytes | str) -> None:
    assert tell(body)[0] in ("query", "unseen", "absent")


@pytest.mark.parametrize(
    "body",
    [
        '{"items": ' + "[" * 250_000,
        '{"items": "' + '\\"' * 125_000,
        '{"query": "' + "\\" * 250_000,
        '{"query"' + " " * 250_000 + "x",
        '{"query":' + " " * 250_000,
        "{" + " ," * 125_000,
        "{" + '"a":1,' * 41_000,
    ],
    ids=["brackets", "quotes", "backslashes", "behind a name", "behind a colon", "commas", "fields"],
)
def test_bodies_that_are_made_to_take_long_are_read_once(tell: Tell, body: str) -> None:
    assert tell(body)[0] in ("query", "unseen", "absent")  # of quadratic work, the test would not see the end
