"""Classification: from fields to a request without a query, and from the head's values to probabilities."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput
from mis_core.tasks.classify.task import CLASSIFY, ParsedClassify
from mis_core.tasks.classify.token_task import TOKEN_CLASSIFY, TOKEN_VALUES
from mis_core.tasks.limits import Limits
from mis_core.tokenization import Tokenizer

LIMITS = Limits(
    context_length=32, vocab_size=1000, max_items=3, max_request_tokens=40, head_labels=("bad", "fair", "good")
)

OF_TOKENS = dataclasses.replace(LIMITS, only_task="token_classify")


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer: Any) -> Tokenizer:
    return Tokenizer(small_tokenizer("llama3"))


def parse(fields: dict[str, Any], tokenizer: Tokenizer | None = None, limits: Limits = LIMITS) -> ParsedClassify:
    assert CLASSIFY.has_text(fields) == (tokenizer is not None)
    return CLASSIFY.parse(fields, tokenizer, limits, ("m",))


def sequences(parsed: ParsedClassify) -> list[list[int]]:
    (request,) = parsed.requests
    assert (len(request.query), request.context_lens.any(), request.label_ids.tolist()) == (0, False, [[0, 1, 2]])
    assert not request.needs_log_sum_exp
    return [row.tolist() for row in np.split(request.item_tokens, request.item_starts[1:-1])]


@pytest.mark.parametrize("ids", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3])])
def test_one_list_of_ids_is_one_input(ids: Any) -> None:
    assert sequences(parse({"input": ids})) == [[1, 2, 3]]
    assert sequences(parse({"input": [ids, [4]]})) == [[1, 2, 3], [4]]


@pytest.mark.parametrize("special", [True, False])
def test_texts_are_tokenised_as_the_tokenizer_does(tokenizer: Tokenizer, special: bool) -> None:
    texts = ["The quick brown fox", " rain"]
    expected = [tokenizer.encode(text, special).tolist() for text in texts]
    options = {"add_special_tokens": special, "cache_salt": "a", "model": "m", "user": "u", "priority": -1}
    assert sequences(parse({"input": texts} | options, tokenizer)) == expected
    assert sequences(parse({"input": texts[0]} | options, tokenizer)) == expected[:1]


VALUES = np.array([[1.0, 2.0, -3.0], [60.0, 61.0, 59.0], [-2000.0, 2000.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("activation", "options", "expected"),
    [
        ("softmax", {}, softmax(VALUES.astype(float), axis=1)),
        ("sigmoid", {"use_activation": True}, expit(VALUES.astype(float))),
        ("identity", {}, VALUES),
        ("softmax", {"use_activation": False}, VALUES),
        ("sigmoid", {"softmax": False}, VALUES),
        ("sigmoid", {"activation": False, "softmax": None}, VALUES),
    ],
)
def test_the_activation_is_the_heads_unless_none_is_wanted(activation: Any, options: dict, expected: Any) -> None:
    limits = dataclasses.replace(LIMITS, head_activation=activation)
    parsed = parse({"input": [[1], [2], [3]]} | options, limits=limits)
    result = CLASSIFY.finish(parsed, (EngineOutput(VALUES, None, cached_tokens=0),))
    np.testing.assert_allclose(result.probabilities, expected, rtol=1e-6)
    assert result.labels == ("fair", "fair", "fair")
    assert result.usage.prompt_tokens == 3


def test_values_that_are_not_finite_are_no_probabilities() -> None:
    parsed = parse({"input": [1]})
    with pytest.raises(FloatingPointError):
        CLASSIFY.finish(parsed, (EngineOutput(np.full((1, 3), np.nan, np.float32), None),))


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"input": "a"}, "invalid_input", "no tokenizer"),
        ({"input": []}, "empty_input", "must not be empty"),
        ({"input": ""}, "empty_input", "must not be empty"),
        ({"input": [1, "a"]}, "invalid_input", "must hold texts only"),
        ({"input": ["\ud800"]}, "invalid_input", "unpaired surrogate"),
        ({"input": {"text": "a"}}, "invalid_input", "not dict"),
        ({"input": [True]}, "invalid_token_id_type", "must be an integer token id"),
        ({"input": [[1]] * 4}, "too_many_items", "4 inputs; at most 3"),
        ({"input": [[1], [2] * 33]}, "context_length_exceeded", r"input\[1\] has 33 tokens; the context holds 32"),
        ({"input": [[1] * 21, [2] * 21]}, "too_many_tokens", "42 tokens; at most 40"),
        ({"input": [1000]}, "token_id_exceeds_vocab", "not below the vocabulary size 1000"),
        ({"input": [1], "activation": True, "softmax": False}, "invalid_activation", "activation and softmax mean"),
        ({"input": [1], "truncate_prompt_tokens": 8}, "unsupported_parameter", "truncate_prompt_tokens"),
    ],
)
def test_what_cannot_be_classified_is_refused(fields: dict, code: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        CLASSIFY.parse(fields, None, LIMITS, None)
    assert caught.value.code == code


def test_a_language_model_says_what_it_lacks() -> None:
    with pytest.raises(RequestError, match=r"no classification head; .* Qwen3ForSequenceClassification") as caught:
        CLASSIFY.parse({"input": [1]}, None, dataclasses.replace(LIMITS, head_labels=()), None)
    assert caught.value.code == "task_not_supported"


def test_the_head_of_a_tokens_labels_is_read_at_every_token(tokenizer: Tokenizer) -> None:
    texts = ["The quick", "<|begin_of_text|>x"]
    parsed = TOKEN_CLASSIFY.parse({"input": texts}, tokenizer, OF_TOKENS, None)
    (request,) = parsed.requests
    lens = [len(tokenizer.encode(text)) for text in texts]
    assert request.read_lens is not None
    assert request.read_lens.tolist() == lens
    assert request.item_tokens.tolist() == [token for text in texts for token in tokenizer.encode(text).tolist()]
    values = np.arange(3 * sum(lens), dtype=np.float32).reshape(-1, 3)
    result = TOKEN_CLASSIFY.finish(parsed, (EngineOutput(values, None),))
    np.testing.assert_allclose(result.probabilities, softmax(values.astype(float), axis=1), rtol=1e-6)
    first, second = result
    assert [(token.text, token.start, token.end) for token in first][:2] == [("", 0, 0), ("The", 0, 3)]
    assert [token.text for token in second] == ["<|begin_of_text|>", "x"]  # it begins with what would be added
    assert {token.label for token in first} == {"good"}


def test_more_token_values_than_a_request_may_have_are_refused() -> None:
    limits = dataclasses.replace(OF_TOKENS, max_scores=3 * (3 + TOKEN_VALUES))
    TOKEN_CLASSIFY.parse({"input": [[1, 2], [3]]}, None, limits, None)
    with pytest.raises(RequestError, match="4 tokens; at most 3 are labelled") as caught:
        TOKEN_CLASSIFY.parse({"input": [[1, 2], [3, 4]]}, None, limits, None)
    assert (caught.value.code, caught.value.param) == ("too_many_tokens", "input")
