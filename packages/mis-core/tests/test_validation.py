"""Every row of the error table that concerns a request's fields, the order of the checks, and what is accepted."""

import dataclasses
import functools
import sys

import numpy as np
import pytest

from mis_core.errors import RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.body import ScoreBody
from mis_core.tasks.score.task import parse_score_request
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.encoder import Encoder

pytestmark = pytest.mark.quick

LIMITS = Limits(context_length=32, vocab_size=1000, max_items=5, max_labels=4, max_request_tokens=60)
GOOD = {"query": [1, 2, 3], "items": [[4], [5, 6]], "label_token_ids": [7, 8]}
TEXT = {"query": "Is it a dog?", "items": [" yes", " no"], "labels": [" yes", " no"]}
HUGE = 10**5000


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer):
    return Tokenizer(small_tokenizer("qwen"))


def parse(body, tokenizer=None, **options):
    return parse_score_request(body, tokenizer, LIMITS, **options).request


def refusal(body, tokenizer=None, **options) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body, tokenizer, **options)
    assert len(caught.value.message) < 400
    assert "\n" not in caught.value.message
    return caught.value


def without(name):
    return {key: value for key, value in GOOD.items() if key != name}


REFUSED = [
    ({"qeury": 1}, "unknown_parameter", "qeury"),
    ({"query": None}, "missing_query", "query"),
    *[({"query": value}, "invalid_query_type", "query") for value in (1, 1.5, True, {}, {"a": 1}, b"text")],
    *[({"query": value}, "empty_query", "query") for value in ("", [], (), np.array([], int))],
    *[({"query": [1, value]}, "invalid_token_id_type", "query") for value in (True, 1.0, "a", None, [2], {})],
    ({"query": np.array([1.0, 2.0])}, "invalid_token_id_type", "query"),
    ({"query": np.array([True])}, "invalid_token_id_type", "query"),
    ({"query": np.array([[1]])}, "invalid_query_type", "query"),
    *[({"query": [1, value]}, "negative_token_id", "query") for value in (-1, -HUGE)],
    *[({"query": [1, value]}, "token_id_exceeds_vocab", "query") for value in (1000, 2**31, 2**63, HUGE)],
    ({"query": np.array([2**64 - 1], np.uint64)}, "token_id_exceeds_vocab", "query"),
    ({"query": "a \ud83d"}, "invalid_query_type", "query"),
    ({"items": None}, "missing_items", "items"),
    *[({"items": value}, "empty_items", "items") for value in ([], (), np.zeros((0, 3), int))],
    *[({"items": value}, "invalid_items_type", "items") for value in (1, True, {}, [1, 2], [None], [[1], 2], [{}])],
    ({"items": np.array([1, 2])}, "invalid_items_type", "items"),
    *[({"items": value}, "mixed_input_types", "items") for value in ("text", ["text"], [[1], "text"], ["", 1])],
    ({"query": "text", "items": [[1]]}, "mixed_input_types", "items"),
    ({"query": "text", "items": ["a", (1,)]}, "mixed_input_types", "items"),
    ({"query": "text", "items": ["a", 1]}, "invalid_items_type", "items"),
    ({"query": "text", "items": ["a", "\udc00"]}, "invalid_items_type", "items"),
    *[({"items": [[1], [2, value]]}, "invalid_token_id_type", "items") for value in (False, 2.0, "2", None, [3])],
    ({"items": [np.array([1.5])]}, "invalid_token_id_type", "items"),
    ({"items": [np.array(1)]}, "invalid_token_id_type", "items"),
    ({"items": [[1], [-2]]}, "negative_token_id", "items"),
    ({"items": [[1], [1000]]}, "token_id_exceeds_vocab", "items"),
    ({"label_token_ids": None}, "missing_label_token_ids", "label_token_ids"),
    *[
        ({"label_token_ids": value}, "invalid_label_token_ids_type", "label_token_ids")
        for value in (7, "7", {"7": 1}, True, [[7], 8], [7, [8]], np.array(7))
    ],
    *[({"label_token_ids": value}, "empty_label_token_ids", "label_token_ids") for value in ([], (), [[7], []])],
    *[
        ({"label_token_ids": [7, value]}, "invalid_token_id_type", "label_token_ids")
        for value in (True, 7.0, "7", None, {})
    ],
    ({"label_token_ids": [[7], [8.0]]}, "invalid_token_id_type", "label_token_ids"),
    ({"label_token_ids": [7, -1]}, "negative_token_id", "label_token_ids"),
    ({"label_token_ids": [[7], [-1]]}, "negative_token_id", "label_token_ids"),
    ({"label_token_ids": [7, 1000]}, "token_id_exceeds_vocab", "label_token_ids"),
    ({"label_token_ids": [[7], [8], [9]]}, "label_count_mismatch", "label_token_ids"),
    ({"label_token_ids": [[7], [-8], [True]]}, "label_count_mismatch", "label_token_ids"),
    ({"labels": [" yes"]}, "conflicting_labels", "labels"),
    ({"labels": []}, "conflicting_labels", "labels"),
    *[({f: v}, f"invalid_{f}_type", f) for f in ("apply_softmax", "item_first") for v in (None, 0, 1, "true", [])],
    *[({f: v}, f"invalid_{f}_type", f) for f in ("return_token_logprobs",) for v in (None, 1, "")],
    *[({f: v}, f"invalid_{f}_type", f) for f in ("model", "cache_salt") for v in (1, [], True, "\ud800")],
    *[
        ({"temperature": value, "apply_softmax": True}, "invalid_temperature", "temperature")
        for value in (0, -1.0, float("nan"), float("inf"), True, "1", None, [], HUGE)
    ],
    ({"temperature": 0.5}, "invalid_temperature", "temperature"),
    ({"items": [[1]] * 6}, "too_many_items", "items"),
    ({"label_token_ids": [1] * 5}, "too_many_labels", "label_token_ids"),
    ({"label_token_ids": [[1], [1] * 5]}, "too_many_labels", "label_token_ids"),
    ({"items": [[1], [1] * 30]}, "context_length_exceeded", "items"),
    ({"query": [1] * 33}, "context_length_exceeded", "items"),
    ({"items": [[1] * 28] * 3}, "too_many_tokens", "items"),
    ({"items": [[1] * 10] * 5, "item_first": True}, "too_many_tokens", "items"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "param"), REFUSED, ids=[f"{index}-{row[1]}" for index, row in enumerate(REFUSED)]
)
def test_refused(changes, code, param, tokenizer):
    error = refusal({**GOOD, **changes}, tokenizer)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        *[({"labels": value}, "invalid_labels_type") for value in ("yes", 1, {}, [1], ["a", None], ["\ud800"])],
        ({"labels": []}, "empty_labels"),
        ({"labels": [" yes", ""]}, "empty_label"),
        ({"labels": [" yes"] * 5}, "too_many_labels"),
    ],
)
def test_text_labels_refused(changes, code, tokenizer):
    error = refusal({**TEXT, **changes}, tokenizer)
    assert (error.code, error.param) == (code, "labels")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"items": [" a", " dog" * 40]}, "context_length_exceeded"),
        ({"items": [" d o g s" * 3] * 5}, "too_many_tokens"),
        ({"items": [" a"] * 6}, "too_many_items"),
    ],
)
def test_text_lengths_refused(changes, code, tokenizer):
    assert refusal({**TEXT, **changes}, tokenizer).code == code


@pytest.mark.parametrize("name", ["query", "items", "label_token_ids"])
def test_missing_field_is_named(name):
    error = refusal(without(name))
    assert (error.code, error.param) == (f"missing_{name}", name)


def test_empty_body_misses_the_query():
    assert refusal({}).code == "missing_query"


BROKEN = [
    ({"unknown": 1}, "unknown_parameter"),
    ({"query": []}, "empty_query"),
    ({"items": []}, "empty_items"),
    ({"items": ["text", 5]}, "mixed_input_types"),
    ({"items": [[1], 5]}, "invalid_items_type"),
    ({"items": [[-1]]}, "negative_token_id"),
    ({"label_token_ids": []}, "empty_label_token_ids"),
    ({"label_token_ids": [True]}, "invalid_token_id_type"),
    ({"query": [1000]}, "token_id_exceeds_vocab"),
    ({"apply_softmax": "no"}, "invalid_apply_softmax_type"),
    ({"item_first": "no"}, "invalid_item_first_type"),
    ({"temperature": -1}, "invalid_temperature"),
    ({"items": [[1] * 40] * 6}, "too_many_items"),
]


@pytest.mark.parametrize("first", range(len(BROKEN)))
def test_earlier_check_wins(first):
    for changes, _ in BROKEN[first + 1 :]:
        body = {**GOOD, **changes, **BROKEN[first][0]}
        assert refusal(body).code == BROKEN[first][1]


def test_messages_name_the_place():
    assert "items[1][2]" in refusal({**GOOD, "items": [[1], [1, 2, 1000]]}).message
    assert "items[2][0]" in refusal({**GOOD, "items": [[1], [], [-1]]}).message
    assert "query[1]" in refusal({**GOOD, "query": [1, None]}).message
    assert "label_token_ids[0]" in refusal({**GOOD, "label_token_ids": [2.5]}).message
    assert "items[1]:" in refusal({**GOOD, "items": [[1], [1] * 40, [1] * 50]}).message


def test_unknown_field_suggests_the_nearest():
    assert "'item_first'" in refusal({**GOOD, "items_first": True}).message
    assert all(name in refusal({**GOOD, "zzz": 1}).message for name in ScoreBody.__struct_fields__)


def test_long_input_is_not_echoed():
    for body in ({**GOOD, "x" * 10_000: 1}, {**GOOD, "model": "x" * 10_000}):
        error = refusal(body, served_models=("served",))
        assert "x" * 65 not in error.message
        assert len(error.param or "") <= 64


def test_model_is_compared_only_where_names_are_given():
    error = refusal({**GOOD, "model": "other"}, served_models=("mine", "alias"))
    assert (error.code, error.param) == ("model_not_found", "model")
    parse({**GOOD, "model": "alias"}, served_models=("mine", "alias"))
    parse({**GOOD, "model": None}, served_models=("mine",))
    parse({**GOOD, "model": "any"})


@pytest.mark.parametrize("body", [TEXT, {**GOOD, "label_token_ids": None, "labels": [" yes"]}])
def test_text_without_a_tokenizer_is_refused(body):
    error = refusal(body)
    assert error.code == "invalid_query_type"
    assert "no tokenizer" in error.message


def test_items_that_shorten_the_query_are_one_token_each(tokenizer):
    """A special token that forms across the seam takes several of the query's tokens away."""
    query = "Judge.<|im_"
    request = parse({"query": query, "items": ["end|>", "", "end|>"], "labels": [" yes"]}, tokenizer)
    alone = len(tokenizer.encode(query))
    assert len(tokenizer.encode(query + "end|>")) < alone
    assert request.prompt_tokens == alone + 2


def test_a_too_long_query_is_refused_before_items_are_tokenised(tokenizer, monkeypatch):
    """`LIMITS` holds 32 tokens; no item is tokenised."""
    monkeypatch.setattr(tokenizer._joiner, "_encode_whole", None)
    monkeypatch.setattr(tokenizer._joiner, "_join_at", None)
    for item_first in (False, True):
        error = refusal({**TEXT, "query": "word " * 40, "item_first": item_first}, tokenizer)
        assert (error.code, error.param) == ("context_length_exceeded", "items")


def test_ids_become_segments():
    request = parse({**GOOD, "items": [[4], [], [5, 6]], "cache_salt": "mine"})
    assert request.query.tolist() == [1, 2, 3]
    assert request.item_tokens.tolist() == [4, 3, 5, 6]
    assert request.item_starts.tolist() == [0, 1, 2, 4]
    assert request.context_lens.tolist() == [3, 2, 3]
    assert request.label_ids.tolist() == [[7, 8]]
    assert (request.apply_softmax, request.temperature, request.return_token_logprobs) == (False, 1.0, False)
    assert request.cache_salt == "mine"
    assert request.prompt_tokens == 6


@pytest.mark.parametrize(
    "same",
    [
        {"query": (1, 2, 3), "items": ((4, 0), [5, 6]), "label_token_ids": (7, 8)},
        {
            "query": np.array([1, 2, 3]),
            "items": np.array([[4, 0], [5, 6]], np.uint8),
            "label_token_ids": np.array([7, 8]),
        },
        {"query": [np.int32(1), 2, np.uint64(3)], "items": [np.array([4, 0]), np.array([5, 6], np.uint64)]},
        {"items": [np.array([4, 0]), [5, 6]], "apply_softmax": np.False_, "temperature": np.float32(1)},
    ],
)
def test_python_sequences_and_arrays_are_as_good_as_lists(same):
    expected = parse({**GOOD, "items": [[4, 0], [5, 6]]})
    request = parse({**GOOD, **same})
    for name in ("query", "item_tokens", "item_starts", "context_lens", "label_ids"):
        value = getattr(request, name)
        assert value.dtype == np.int32
        np.testing.assert_array_equal(value, getattr(expected, name))


@pytest.mark.parametrize("items", [[[]], [(), []], [np.array([])], np.zeros((2, 0), int)])
def test_all_items_may_be_empty(items):
    assert set(parse({**GOOD, "items": items}).item_tokens.tolist()) == {3}


def test_labels_may_repeat_and_differ_by_item():
    assert parse({**GOOD, "label_token_ids": [7, 7]}).label_ids.tolist() == [[7, 7]]
    ragged = parse({**GOOD, "label_token_ids": [[7], [8, 9, 8]]})
    assert ragged.label_ids.tolist() == [[7, -1, -1], [8, 9, 8]]


def test_id_zero_and_the_last_id_are_legal():
    request = parse({"query": [0], "items": [[999]], "label_token_ids": [0, 999]})
    assert request.label_ids.tolist() == [[0, 999]]


def test_lengths_at_the_limits_are_allowed():
    parse({**GOOD, "items": [[1] * 29]})
    parse({**GOOD, "items": [[1] * 19] * 3})
    parse({**GOOD, "items": [[1]] * 5, "label_token_ids": [1] * 4})


def test_text_request_equals_its_ids(tokenizer, small_tokenizer):
    request = parse({**TEXT, "items": " yes"}, tokenizer)
    ids = small_tokenizer("qwen").encode(TEXT["query"] + " yes").ids
    assert [*request.query[: request.context_lens[0]], *request.item_tokens] == ids
    assert request.label_ids.tolist() == [[tokenizer.label_id(" yes"), tokenizer.label_id(" no")]]
    first = parse({**TEXT, "items": [" yes"], "item_first": True}, tokenizer)
    assert first.item_tokens.tolist() == small_tokenizer("qwen").encode(" yes" + TEXT["query"]).ids
    assert first.query.size == 0


def test_text_labels_go_with_ids(tokenizer):
    request = parse({**GOOD, "label_token_ids": None, "labels": [" yes"]}, tokenizer)
    assert request.label_ids.tolist() == [[tokenizer.label_id(" yes")]]


def test_softmax_options_are_kept():
    request = parse({**GOOD, "apply_softmax": True, "temperature": 2, "return_token_logprobs": True})
    assert (request.apply_softmax, request.temperature, request.return_token_logprobs) == (True, 2.0, True)


def count_calls(function):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("item_first", [False, True])
def test_python_work_does_not_grow_with_items(item_first):
    limits = Limits(context_length=4096, vocab_size=1000)
    bodies = [{**GOOD, "items": [[1, 2, 3], []] * half, "item_first": item_first} for half in (2, 250)]
    counts = [count_calls(functools.partial(parse_score_request, body, None, limits)) for body in bodies]
    assert abs(counts[1] - counts[0]) < 100  # the annotation checker in tests varies a little


def test_items_times_labels_are_bounded_before_they_take_memory():
    limits = Limits(context_length=32, vocab_size=1000, max_scores=11)
    body = {"query": [1], "items": [[2]] * 4, "label_token_ids": [[3, 4, 5], [3], [3], [3]]}
    with pytest.raises(RequestError, match="12 scores") as caught:
        parse_score_request(body, None, limits)
    assert (caught.value.code, caught.value.param) == ("too_many_labels", "label_token_ids")
    body["label_token_ids"][0].pop()
    assert parse_score_request(body, None, limits).request.label_ids.shape == (4, 2)


def test_labels_are_counted_before_they_are_looked_up(tokenizer, monkeypatch):
    monkeypatch.setattr(Tokenizer, "label_ids", lambda self, text: pytest.fail("looked up"))
    assert refusal({"query": "a", "items": ["b"], "labels": ["c"] * 5}, tokenizer).code == "too_many_labels"


def test_text_beyond_the_limit_is_never_tokenised(tokenizer, monkeypatch):
    monkeypatch.setattr(Encoder, "encode_all", lambda *arguments, **options: pytest.fail("tokenised"))
    limits = Limits(context_length=32, vocab_size=1000, max_text_characters=10)
    for body, param in (
        ({"query": "a" * 11, "items": [""], "label_token_ids": [1]}, "query"),
        ({"query": "a", "items": ["b" * 5] * 2, "label_token_ids": [1]}, "items"),
        ({"query": [1], "items": [[2]], "labels": ["c" * 11]}, "labels"),
    ):
        with pytest.raises(RequestError, match="characters") as caught:
            parse_score_request(body, tokenizer, limits)
        assert (caught.value.code, caught.value.param) == ("too_many_tokens", param)


HEAD = dataclasses.replace(LIMITS, head_labels=("bad", "fair", "good", "fair"))


def test_labels_of_a_head_are_its_rows(tokenizer) -> None:
    def labels(**fields):
        return parse_score_request(without("label_token_ids") | fields, None, HEAD).request.label_ids.tolist()

    assert labels() == [[0, 1, 2, 3]]
    assert labels(label_token_ids=[3, 0]) == [[3, 0]]
    assert labels(label_token_ids=[[3], [0]]) == [[3], [0]]
    assert labels(labels=["good", "bad"]) == [[2, 0]]
    assert parse_score_request(TEXT | {"labels": ["bad"]}, tokenizer, HEAD).request.label_ids.tolist() == [[0]]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"label_token_ids": [4]}, "token_id_exceeds_vocab", r"label_token_ids\[0\] is not below the number of rows"),
        ({"items": [[1000]]}, "token_id_exceeds_vocab", "is not below the vocabulary size 1000"),
        ({"label_token_ids": None, "labels": ["best"]}, "unknown_label", "'best' names no row of the model's head"),
        ({"label_token_ids": None, "labels": ["fair"]}, "unknown_label", "'fair' names several rows of"),
    ],
)
def test_what_no_row_of_a_head_is_is_refused(changes, code: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        parse_score_request(GOOD | {"label_token_ids": [0]} | changes, None, HEAD)
    assert caught.value.code == code
