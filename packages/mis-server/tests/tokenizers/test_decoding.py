"""Bodies with ids read without Python objects mean what they mean otherwise."""

import dataclasses
import json
import marshal
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mis_core.errors import RequestError
from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.task import parse_score_request
from mis_server.tokenizers.decoding import decode_body, decode_object, packed

pytestmark = pytest.mark.quick

LIMITS = Limits(context_length=64, vocab_size=100, max_items=8, max_labels=4)

ids = st.integers(0, 99)
numbers = st.one_of(
    ids,
    ids,
    ids,
    st.sampled_from([-1, 100, 2**31, 2**63, 2**64, 2**70, True, None, 1.0, 1e3, "7", "[", [], [1], [[1]], {}]),
)
lists = st.lists(ids, max_size=5) | st.lists(numbers, max_size=5)
rows = st.lists(lists, max_size=4) | st.lists(lists | numbers, max_size=4)
some_ids = st.lists(ids, min_size=1, max_size=5)
valid = st.fixed_dictionaries(
    {
        "query": some_ids,
        "items": st.lists(st.lists(ids, max_size=5), min_size=1, max_size=4),
        "label_token_ids": some_ids | st.lists(some_ids, min_size=1, max_size=4),
    }
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "query": lists | rows | st.just("text"),
        "items": rows | lists | st.just("text"),
        "label_token_ids": lists | rows,
        "apply_softmax": st.booleans() | numbers,
        "temperature": st.sampled_from([1.0, 0.5, 2, 0, "1", None, 1e400]),
        "cache_salt": st.text(max_size=3) | st.sampled_from(["[", "\ud800", "\x00"]),
        "nothing": numbers,
    },
)
one_change = changes.map(lambda fields: dict(list(fields.items())[-1:]))
bodies = st.builds(lambda fields, changed: {**fields, **changed}, valid, st.just({}) | one_change)


def outcome(decode: Any, body: bytes) -> Any:
    try:
        request = parse_score_request(decode(body), None, LIMITS).request
    except RequestError as error:
        return error.code, error.message, error.param
    values = ((field.name, getattr(request, field.name)) for field in dataclasses.fields(ScoreRequest))
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values}


def plain(**fields: Any) -> bytes:
    return json.dumps({"query": [1, 2], "items": [[3], [], [4, 5]], "label_token_ids": [6, 7], **fields}).encode()


@given(bodies, st.booleans())
@example({"query": [1], "items": [[1]], "label_token_ids": [1]}, True)
def test_every_body_has_the_outcome_of_the_general_decoder(fields: dict[str, Any], compact: bool) -> None:
    body = json.dumps(fields, separators=(",", ":") if compact else None).encode()
    assert outcome(decode_body, body) == outcome(sent, body) == outcome(decode_object, body)


@given(st.binary(max_size=6), st.integers(0, 80), st.integers(0, 4))
def test_broken_bodies_fare_as_with_the_general_decoder(noise: bytes, at: int, cut: int) -> None:
    body = plain()
    body = body[:at] + noise + body[at + cut :]
    assert outcome(decode_body, body) == outcome(decode_object, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b" " + plain(),
        b"\xef\xbb\xbf" + plain(),
        plain() + b" ",
        plain() + b"{}",
        plain(query=[[1], [2]]),
        plain(items=[[[3]], [[4]]]),
        plain(items=[[[3, 4], []]]),
        plain(items=[3, [4]]),
        plain(items=[[3], 4]),
        plain(label_token_ids=[[6], [], [7]]),
        plain(label_token_ids=[[6], [7]]),
        plain(label_token_ids=[[6], [7], [[8]]]),
        plain(cache_salt="[[["),
        plain(cache_salt=["a"]),
        plain(labels="a"),
        plain(query=[1 << 64], labels="a"),
        plain()[:-1] + b', "query": [9]}',
        plain()[:-1] + b', "query": 0' * 1000 + b"}",
        b"{"
        + b", ".join(b'"%d": 1' % number for number in range(100_000))
        + b"}",  # a second each, if each is looked up
        plain()[:-1] + b', "nothing\\u0000": 1}',
        plain()[:-1] + b', "temperature": 1, "temperature\\u0000": 2}',
        b'{"query\\u0000": 1}',
        b'{"qu\\u0065ry": [1], "items": [[2]], "label_token_ids": [3]}',
        plain()[:-1] + b', "items": [[9]], "items": "x"}',
        b'{"query": [1], "items": [[-0]], "label_token_ids": [1]}',
        b'{"query": [1], "items": [[01]], "label_token_ids": [1]}',
        b'{"query": [1], "items": [[NaN]], "label_token_ids": [1]}',
        b"[" * 10_000,
        b'{"query": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_unusual_bodies_have_the_outcome_of_the_general_decoder(body: bytes) -> None:
    assert outcome(decode_body, body) == outcome(sent, body) == outcome(decode_object, body)


def sent(body: bytes) -> Mapping[str, Any]:
    """Fields of a body as a tokenizer process gets them."""
    return marshal.loads(packed(decode_body(body), body))


def test_fields_that_are_too_deep_to_be_sent_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        packed({"metadata": deep})


@pytest.mark.parametrize("labels", [[6, 7], [[6], [7, 8], [9]]])
def test_plain_ids_are_read_as_arrays(labels: Any) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("needs pysimdjson, which has no wheel for this Python")
    fields = decode_body(plain(label_token_ids=labels, apply_softmax=True, temperature=0.5, cache_salt="a"))
    assert all(isinstance(fields[name], TokenRows) for name in ("query", "items", "label_token_ids"))
    assert fields["items"].lens.tolist() == [1, 0, 2]
    assert fields["items"].values.tolist() == [3, 4, 5]
    assert (fields["apply_softmax"], fields["temperature"], fields["cache_salt"]) == (True, 0.5, "a")


def test_a_python_without_the_fast_parser_answers_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outcome(decode_body, plain())
    monkeypatch.setattr("mis_server.tokenizers.decoding.Parser", None)
    assert isinstance(decode_body(plain())["query"], list)
    assert outcome(decode_body, plain()) == expected
