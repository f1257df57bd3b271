"""`on_error`: an item that is wrong in itself takes nothing from the others, and is told what it would hear alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.task import finish_score, parse_score_request
from mis_core.tokenization import Tokenizer

LIMITS = Limits(context_length=16, vocab_size=100, max_items=40, delimiter=None)


WITHOUT_A_PLACE = ("mixed_input_types", "delimiter_in_input")  # their messages are of query and items


def output_of(request: ScoreRequest) -> EngineOutput:
    """Answer as a device that tells different sequences apart would."""
    rows = []
    for item, context_len in enumerate(request.context_lens):
        segment = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        seed = [context_len, *request.query[:context_len], *segment]
        rows.append(np.random.default_rng(seed).normal(size=100))
    logits = np.array(rows, np.float32).reshape(-1, 100)
    ids = np.broadcast_to(request.label_ids, (len(rows), request.label_ids.shape[1]))
    return EngineOutput(np.take_along_axis(logits, ids, 1), np.full(len(rows), 6, np.float32))


def score(body, tokenizer=None, limits=LIMITS):
    parsed = parse_score_request(body, tokenizer, limits)
    assert len(parsed.requests) == (parsed.request.num_items > 0)
    return finish_score(parsed, tuple(map(output_of, parsed.requests)))


def alone(body, index, tokenizer, limits):
    """Return the scores of one item in a request of its own, or the code that it gets there."""
    labels = body.get("label_token_ids")
    changes = {"items": [body["items"][index]], "on_error": "request"}
    if labels is not None and isinstance(labels[0], list):
        changes["label_token_ids"] = [labels[index]]
    try:
        return score(body | changes, tokenizer, limits).scores[0]
    except RequestError as error:
        return error.code


def check(body, tokenizer=None, limits=LIMITS):
    result = score(body | {"on_error": "item"}, tokenizer, limits)
    errors = {error.index: error for error in result.errors}
    assert list(errors) == sorted(errors)
    assert len(result.scores) == len(body["items"])
    for index, row in enumerate(result.scores):
        expected = alone(body, index, tokenizer, limits)
        if isinstance(expected, str):
            assert errors[index].code == expected
            assert f"items[{index}]" in errors[index].message or expected in WITHOUT_A_PLACE
            assert errors[index].param == "items"
            assert np.isnan(row).all()
        else:
            assert index not in errors
            assert row[: len(expected)].tobytes() == expected.tobytes()
            assert np.isnan(row[len(expected) :]).all()
    return errors


tokens = st.lists(st.integers(0, 99), max_size=4)
wrong = st.sampled_from(["text", 7, None, [-1], [1, 100], [2**70], [True], [1.5], [[1]], [3] * 14, {}, [0, 50, 1000]])


@given(st.lists(tokens | wrong, min_size=1, max_size=8), st.booleans(), st.booleans(), st.sampled_from([None, 50]))
def test_ids_are_scored_as_if_what_is_wrong_had_not_been_sent(items, item_first, own_labels, delimiter):
    labels = [[number % 5 + 1] * (number % 3 + 1) for number in range(len(items))] if own_labels else [7, 8]
    body = {"query": [1, 2, 3], "items": items, "label_token_ids": labels, "item_first": item_first}
    check(body, limits=Limits(context_length=16, vocab_size=100, delimiter=delimiter))


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer):
    return Tokenizer(small_tokenizer("qwen"))


@settings(max_examples=30, deadline=None)
@given(
    items=st.lists(st.sampled_from([" yes", "", " no no", 7, None, [1], "\ud800", " dog" * 30]), min_size=1, max_size=8)
)
def test_texts_are_scored_as_if_what_is_wrong_had_not_been_sent(tokenizer, items):
    limits = Limits(context_length=16, vocab_size=tokenizer.vocab_size)
    check({"query": "Is it a dog?", "items": items, "label_token_ids": [7]}, tokenizer, limits)


def test_every_kind_of_wrong_item_has_its_code():
    items = ["a", 7, [-1], [True], [100], [1] * 14, [5], [1]]
    body = {"query": [1, 2, 3], "items": items, "label_token_ids": [7]}
    errors = check(body, limits=Limits(context_length=16, vocab_size=100, delimiter=5))
    assert [error.code for error in errors.values()] == [
        "mixed_input_types",
        "invalid_items_type",
        "negative_token_id",
        "invalid_token_id_type",
        "token_id_exceeds_vocab",
        "context_length_exceeded",
        "delimiter_in_input",
    ]
    assert list(errors) == list(range(7))


def test_nothing_is_computed_where_every_item_is_wrong():
    for labels in ([7, 8], [[7], [8, 9]]):
        body = {"query": [1], "items": [None, [200]], "label_token_ids": labels, "return_token_logprobs": True}
        parsed = parse_score_request(body | {"on_error": "item"}, None, LIMITS)
        assert parsed.requests == ()
        result = finish_score(parsed, ())
        assert result.scores.shape == result.token_logprobs.shape == (2, 2)
        assert np.isnan(result.scores).all()
        assert (result.usage.prompt_tokens, result.segments, result.contexts, len(result.errors)) == (0, 0, 0, 2)


def test_what_is_wrong_is_not_counted():
    body = {"query": [1, 2, 3], "items": [[4], [500, 1], [5, 6]], "label_token_ids": [7], "on_error": "item"}
    result = score(body)
    assert result.usage.prompt_tokens == 6
    assert (result.segments, result.contexts) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"query": [100]}, "token_id_exceeds_vocab"),
        ({"query": [1] * 17}, "context_length_exceeded"),
        ({"items": []}, "empty_items"),
        ({"items": [[1], "a"] * 21}, "too_many_items"),
        ({"items": [[1]] * 41}, "too_many_items"),
        ({"label_token_ids": [100]}, "token_id_exceeds_vocab"),
        ({"label_token_ids": [[1]]}, "label_count_mismatch"),
        ({"temperature": 0}, "invalid_temperature"),
        ({"on_error": "skip"}, "invalid_on_error"),
        ({"on_error": 7}, "invalid_on_error"),
    ],
)
def test_what_is_wrong_with_the_request_refuses_it(changes, code):
    body = {"query": [1, 2], "items": [[1], None], "label_token_ids": [7], "on_error": "item"} | changes
    with pytest.raises(RequestError) as caught:
        score(body)
    assert caught.value.code == code


def test_any_field_of_items_can_be_sorted_out():
    """As rerank and decisions do with documents and questions."""

    def read(index, document):
        if not isinstance(document, str):
            raise RequestError("invalid_documents", f"documents[{index}] must be a text.", "documents")
        return document.upper()

    with pytest.raises(RequestError, match=r"documents\[1\]"):
        ItemErrors("documents", 4, per_item=False).read_each(["a", 1, "b", None], read)
    errors = ItemErrors("documents", 4, per_item=True)
    assert errors.read_each(["a", 1, "b", None], read) == ["A", "B"]
    rows = errors.refuse(
        np.array([True, False]), lambda row, index: RequestError("too_long", f"documents[{index}] {row}")
    )
    assert rows.tolist() == [1]
    assert (errors.count, errors.kept.tolist()) == (4, [2])
    assert [(error.index, error.code, error.param) for error in errors.errors] == [
        (0, "too_long", "documents"),
        (1, "invalid_documents", "documents"),
        (3, "invalid_documents", "documents"),
    ]
    np.testing.assert_array_equal(
        errors.spread(np.ones((1, 2), np.float32)), [[np.nan] * 2, [np.nan] * 2, [1, 1], [np.nan] * 2]
    )
