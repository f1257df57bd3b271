"""Labels of several tokens: which tokens are computed, where they are read, and what the probabilities mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.task import finish_score, parse_score_request
from mis_core.tokenization import Tokenizer

LABELS = [" yes", " no no", " dog and dog", "maybe", " yes"]
OPTIONS = {"return_token_logprobs": True}


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer):
    return Tokenizer(small_tokenizer("qwen"))


def limits_of(tokenizer, **limits):
    return Limits(**{"context_length": 128, "vocab_size": tokenizer.vocab_size} | limits)


def position_logits(tokens, vocab_size):
    """Stand-in for a model: the logits behind a sequence depend on all of it."""
    return np.random.default_rng([len(tokens), *map(int, tokens)]).normal(size=vocab_size) * 4


def output_of(request: ScoreRequest, vocab_size: int) -> EngineOutput:
    """Answer as the engine does: read the last rows of each segment behind its context."""
    rows = []
    reads = np.ones(request.num_items, int) if request.read_lens is None else request.read_lens
    for item, (context_len, count) in enumerate(zip(request.context_lens, reads, strict=True)):
        segment = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        sequence = [*request.query[:context_len], *segment]
        assert count <= len(segment)
        rows += [
            position_logits(sequence[:end], vocab_size) for end in range(len(sequence) - count + 1, len(sequence) + 1)
        ]
    logits = np.array(rows)
    assert len(logits) == request.num_reads
    ids = np.broadcast_to(request.label_ids, (len(logits), request.label_ids.shape[1]))
    found = np.where(ids < 0, np.nan, np.take_along_axis(logits, np.maximum(ids, 0), 1)).astype(np.float32)
    return EngineOutput(found, logsumexp(logits, axis=1).astype(np.float32) if request.needs_log_sum_exp else None)


def score(body, tokenizer, **limits):
    parsed = parse_score_request(body, tokenizer, limits_of(tokenizer, **limits))
    return finish_score(parsed, tuple(output_of(request, tokenizer.vocab_size) for request in parsed.requests))


def sequence_logprob(tokens, label, vocab_size):
    """The chain rule, token by token."""
    return sum(
        log_softmax(position_logits([*tokens, *label[:place]], vocab_size))[token] for place, token in enumerate(label)
    )


label_texts = st.lists(
    st.sampled_from([" yes", " no", " dog and dog", " no no", "maybe not", "é"]), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None)
@given(
    items=st.lists(st.sampled_from(["", " yes", " a dog", " dog dog dog"]), min_size=1, max_size=4),
    labels=label_texts,
    item_first=st.booleans(),
)
def test_a_label_has_the_probability_of_all_its_tokens(tokenizer, items, labels, item_first):
    query = "Is it a dog?"
    result = score(OPTIONS | {"query": query, "items": items, "labels": labels, "item_first": item_first}, tokenizer)
    expected = [
        [
            sequence_logprob(
                tokenizer.encode(item + query if item_first else query + item),
                tokenizer.label_ids(label),
                tokenizer.vocab_size,
            )
            for label in labels
        ]
        for item in items
    ]
    np.testing.assert_allclose(result.token_logprobs, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.scores, np.exp(result.token_logprobs), rtol=1e-6)


def test_a_softmax_is_over_the_probabilities_of_whole_labels(tokenizer):
    body = {"query": "Is it a dog?", "items": [" a", " b"], "labels": LABELS, "apply_softmax": True, "temperature": 2.0}
    result = score(body | OPTIONS, tokenizer)
    np.testing.assert_allclose(result.scores, np.exp(log_softmax(result.token_logprobs / 2, axis=1)), rtol=1e-5)
    assert score(body, tokenizer).token_logprobs is None
    assert score(body, tokenizer).scores.tobytes() == result.scores.tobytes()


def test_labels_of_one_token_are_as_ever(tokenizer):
    """Their request is that of their ids; beside longer ones, their log-probabilities keep their bits."""
    body = {"query": "Is it a dog?", "items": [" a", ""], "labels": [" yes", " no"]}
    ids = [tokenizer.label_id(text) for text in body["labels"]]
    limits = limits_of(tokenizer)
    (request,) = parse_score_request(body, tokenizer, limits).requests
    (same,) = parse_score_request(body | {"labels": None, "label_token_ids": ids}, tokenizer, limits).requests
    assert request.label_ids.tolist() == same.label_ids.tolist() == [ids]
    assert request.read_lens is None
    assert request.item_tokens.tolist() == same.item_tokens.tolist()
    mixed = score(body | OPTIONS | {"labels": [" no no", " yes", " dog and dog", " no"]}, tokenizer)
    alone = score(body | OPTIONS, tokenizer)
    assert mixed.token_logprobs[:, [1, 3]].tobytes() == alone.token_logprobs.tobytes()


def test_labels_of_one_token_share_a_segment(tokenizer):
    body = {"query": "Is it a dog?", "items": [" a", " dog and"], "labels": LABELS}
    lens = [len(tokenizer.label_ids(text)) for text in LABELS]
    assert lens[0] == lens[4] == 1
    long = [length for length in lens if length > 1]
    parsed = parse_score_request(body, tokenizer, limits_of(tokenizer))
    (request,) = parsed.requests
    assert request.num_items == 2 * (1 + len(long))
    assert request.read_lens.tolist() == [1, *long] * 2
    base = np.diff(parsed.request.item_starts)
    assert np.diff(request.item_starts).tolist() == [size + more for size in base for more in [0, *np.array(long) - 1]]
    result = score(body, tokenizer)
    assert result.usage.prompt_tokens == parsed.request.prompt_tokens == len(tokenizer.encode("Is it a dog? a")) + 2
    assert request.prompt_tokens > result.usage.prompt_tokens  # admission counts what is computed
    assert (result.segments, result.contexts) == (request.num_items, 1)


def test_limits_count_what_labels_repeat(tokenizer):
    body = {"query": "Is it a dog?", "items": [" a dog and", " yes"], "labels": [" no no", " dog and dog"]}
    (request,) = parse_score_request(body, tokenizer, limits_of(tokenizer)).requests
    tokens = len(request.query) + len(request.item_tokens)
    score(body, tokenizer, max_request_tokens=tokens)
    refused(body, tokenizer, "too_many_tokens", max_request_tokens=tokens - 1)
    values = request.num_reads * request.label_ids.shape[1]
    score(body, tokenizer, max_scores=values)
    assert "values" in refused(body, tokenizer, "too_many_labels", max_scores=values - 1)
    lens = int((request.context_lens + np.diff(request.item_starts)).max())
    score(body, tokenizer, context_length=lens)
    assert "items[0]: query, item and label" in refused(
        body, tokenizer, "context_length_exceeded", context_length=lens - 1
    )
    kept = score(body | {"on_error": "item"}, tokenizer, context_length=lens - 1)
    assert [error.index for error in kept.errors] == [0]
    assert np.isnan(kept.scores[0]).all()
    np.testing.assert_array_equal(kept.scores[1], score(body, tokenizer).scores[1])


def refused(body, tokenizer, code, **limits):
    with pytest.raises(RequestError) as caught:
        score(body, tokenizer, **limits)
    assert caught.value.code == code
    return caught.value.message


def test_a_label_without_tokens_is_refused(tokenizer):
    refused({"query": "a", "items": ["b"], "labels": [" yes", ""]}, tokenizer, "empty_label")


def test_no_item_that_can_be_scored_is_no_request(tokenizer):
    body = {"query": "a", "items": [7], "labels": LABELS, "on_error": "item"}
    assert score(body, tokenizer).scores.shape == (1, len(LABELS))
