"""Scores from label logits: which position they are read at, what they mean, and that they stay finite."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp

from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tasks.score.task import finish_score, parse_score_request

pytestmark = pytest.mark.quick

VOCABULARY = 50
LIMITS = Limits(context_length=64, vocab_size=VOCABULARY)


def position_logits(tokens):
    """Stand-in for a model: each position's logits depend on its token, its place and all tokens before it."""
    state, rows = 0, []
    for place, token in enumerate(tokens):
        state = (state * 31 + int(token) * 7 + place + 1) % 1_000_003
        rows.append(np.random.default_rng(state).normal(size=VOCABULARY) * 4)
    return np.array(rows)


def answer(request: ScoreRequest) -> EngineOutput:
    """Answer as a device would: read the last position of each segment behind its context."""
    rows = []
    for item, context_len in enumerate(request.context_lens):
        segment = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        rows.append(position_logits([*request.query[:context_len], *segment])[-1])
    logits = np.array(rows)
    labels = np.broadcast_to(request.label_ids, (len(rows), request.label_ids.shape[1]))
    found = np.take_along_axis(logits, labels, axis=1).astype(np.float32)  # a label of -1 reads something, as there
    return EngineOutput(found, logsumexp(logits, axis=1).astype(np.float32) if request.needs_log_sum_exp else None)


def score(query, items, labels, **options):
    parsed = parse_score_request({"query": query, "items": items, "label_token_ids": labels, **options}, None, LIMITS)
    return finish_score(parsed, tuple(map(answer, parsed.requests)))


def pointwise(tokens, labels):
    return log_softmax(position_logits(tokens)[-1])[labels]


def request_of(label_ids, num_items=1, **options) -> ScoreRequest:
    return ScoreRequest(
        np.array([1, 2], np.int32),
        np.arange(num_items, dtype=np.int32),
        np.arange(num_items + 1, dtype=np.int32),
        np.full(num_items, 2, np.int32),
        np.array(label_ids, np.int32),
        **options,
    )


def finished(logits, log_sum_exp=None, label_ids=None, **options):
    logits = np.array(logits, np.float32)
    label_ids = label_ids if label_ids is not None else [list(range(logits.shape[1]))]
    normalisers = None if log_sum_exp is None else np.array(log_sum_exp, np.float32)
    request = request_of(label_ids, len(logits), **options)
    parsed = ParsedScore(request, (request,), ItemErrors("items", len(logits), per_item=False))
    return finish_score(parsed, (EngineOutput(logits, normalisers),))


class TestShift:
    def test_score_is_of_the_token_after_the_item(self):
        result = score([3, 4, 5], [[6, 7]], [8, 9], return_token_logprobs=True)
        np.testing.assert_allclose(result.token_logprobs[0], pointwise([3, 4, 5, 6, 7], [8, 9]), rtol=1e-5)

    @pytest.mark.parametrize("wrong", [[3, 4, 5, 6], [3, 4, 5, 6, 7, 8], [4, 5, 6, 7]])
    def test_reading_one_position_off_would_be_noticed(self, wrong):
        result = score([3, 4, 5], [[6, 7]], [8, 9], return_token_logprobs=True)
        assert np.abs(result.token_logprobs[0] - pointwise(wrong, [8, 9])).max() > 0.1

    @pytest.mark.parametrize("length", [1, 2, 5, 10, 20])
    def test_items_of_any_length(self, length):
        item = list(range(length))
        result = score([3, 4], [item], [8])
        np.testing.assert_allclose(result.scores[0], np.exp(pointwise([3, 4, *item], [8])), rtol=1e-5)

    def test_peaked_logits_give_a_high_score(self):
        assert finished([[20.0, 0.0]], [np.logaddexp(20.0, 0.0)]).scores[0, 0] > 0.99


class TestBoundary:
    def test_empty_item_is_scored_at_the_querys_end(self):
        result = score([3, 4, 5], [[], [6]], [8, 9])
        np.testing.assert_allclose(result.scores[0], np.exp(pointwise([3, 4, 5], [8, 9])), rtol=1e-5)
        np.testing.assert_allclose(result.scores[1], np.exp(pointwise([3, 4, 5, 6], [8, 9])), rtol=1e-5)

    def test_where_query_ends_and_item_begins_does_not_matter(self):
        results = [score([3, 4, 5, 6][:cut], [[3, 4, 5, 6][cut:]], [8, 9]).scores for cut in range(1, 5)]
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])

    def test_item_first_reads_the_querys_end(self):
        result = score([3, 4], [[5], [], [6, 7]], [8], item_first=True)
        expected = [np.exp(pointwise(tokens, [8])) for tokens in ([5, 3, 4], [3, 4], [6, 7, 3, 4])]
        np.testing.assert_allclose(result.scores, expected, rtol=1e-5)

    def test_items_keep_their_order_and_their_scores(self):
        items = [[5], [6, 7], [], [5], [9, 10, 11]]
        forward, backward = (score([3, 4], order, [8, 9]).scores for order in (items, items[::-1]))
        np.testing.assert_array_equal(forward, backward[::-1])
        np.testing.assert_array_equal(forward[0], forward[3])
        for index, item in enumerate(items):
            np.testing.assert_array_equal(score([3, 4], [item], [8, 9]).scores[0], forward[index])


class TestMask:
    def test_shorter_label_lists_end_in_nan(self):
        result = score([3, 4], [[5], [6], [7]], [[8, 9], [10], [11, 12]], return_token_logprobs=True)
        assert np.isnan(result.scores).tolist() == [[False, False], [False, True], [False, False]]
        assert np.isnan(result.token_logprobs).tolist() == np.isnan(result.scores).tolist()
        np.testing.assert_allclose(result.scores[1, 0], np.exp(pointwise([3, 4, 6], [10]))[0], rtol=1e-5)

    @pytest.mark.parametrize("filler", [0.0, 1e30, np.nan, np.inf, -np.inf])
    def test_what_fills_a_row_contributes_nothing(self, filler):
        labels = [[4, 5, -1], [4, 5, 6]]
        result = finished([[1.0, 2.0, filler], [1.0, 2.0, 3.0]], label_ids=labels, apply_softmax=True)
        alone = finished([[1.0, 2.0]], apply_softmax=True)
        np.testing.assert_array_equal(result.scores[0, :2], alone.scores[0])
        assert np.isnan(result.scores[0, 2])

    def test_duplicate_labels_score_equally(self):
        for options in ({}, {"apply_softmax": True}):
            scores = score([3], [[5]], [8, 9, 8], **options).scores
            assert scores[0, 0] == scores[0, 2]


class TestMeaning:
    def test_scores_without_softmax_are_vocabulary_probabilities(self):
        everything = score([3], [[5], [6]], list(range(VOCABULARY)))
        np.testing.assert_allclose(everything.scores.sum(axis=1), 1.0, atol=1e-5)
        some = score([3], [[5], [6]], [8, 9])
        assert np.all((some.scores >= 0) & (some.scores.sum(axis=1, keepdims=True) <= 1))

    def test_with_softmax_every_row_sums_to_one(self):
        result = score([3], [[5], [6], []], [8, 9, 10], apply_softmax=True)
        np.testing.assert_allclose(result.scores.sum(axis=1), 1.0, atol=1e-6)

    def test_softmax_does_not_need_the_normaliser(self):
        with_it = score([3], [[5]], [8, 9], apply_softmax=True, return_token_logprobs=True)
        without = score([3], [[5]], [8, 9], apply_softmax=True)
        np.testing.assert_array_equal(with_it.scores, without.scores)
        assert without.token_logprobs is None

    def test_temperature_divides_before_the_softmax(self):
        result = finished([[1.0, 3.0]], apply_softmax=True, temperature=0.5)
        np.testing.assert_allclose(result.scores[0, 1], 1 / (1 + np.exp(-4.0)), rtol=1e-6)

    def test_token_logprobs_ignore_the_temperature(self):
        options = {"apply_softmax": True, "return_token_logprobs": True}
        result = finished([[1.0, 3.0]], [4.0], temperature=2.0, **options)
        np.testing.assert_allclose(result.token_logprobs, [[-3.0, -1.0]])

    def test_missing_normaliser_is_an_error(self):
        with pytest.raises(ValueError, match="log_sum_exp"):
            finished([[1.0]])

    def test_usage_counts_the_query_once_and_empty_items_as_zero(self):
        assert score([3, 4, 5], [[6], [], [7, 8]], [9]).usage.prompt_tokens == 6
        assert score([3, 4], [[6], []], [9], item_first=True).usage.prompt_tokens == 5


class TestStability:
    @pytest.mark.parametrize("logits", [[1000.0, 1001.0], [-1000.0, -999.0], [1e38, -1e38], [-3.4e38, 3.4e38]])
    def test_extreme_logits_stay_finite(self, logits):
        normaliser = [logsumexp(np.array(logits, np.float64))]
        for options in ({}, {"apply_softmax": True}, {"apply_softmax": True, "temperature": 1e-300}):
            result = finished([logits], normaliser, return_token_logprobs=True, **options)
            assert np.isfinite(result.scores).all()
            assert np.isfinite(result.token_logprobs).all()
            np.testing.assert_allclose(result.scores.sum(), 1.0, rtol=1e-4)

    def test_a_label_of_probability_zero_keeps_its_logprob(self):
        result = finished([[-200.0, 0.0]], [0.0], return_token_logprobs=True)
        assert result.scores[0, 0] == 0.0
        assert result.token_logprobs[0, 0] == -200.0

    def test_a_rounded_normaliser_gives_at_most_probability_one(self):
        result = finished([[100.00001]], [100.0], return_token_logprobs=True)
        assert result.scores[0, 0] == 1.0
        assert result.token_logprobs[0, 0] == 0.0

    def test_large_vocabulary(self):
        logits = np.random.default_rng(0).normal(size=128_000).astype(np.float32)
        result = finished([logits[:4]], [logsumexp(logits.astype(np.float64))])
        np.testing.assert_allclose(result.scores[0], np.exp(log_softmax(logits.astype(np.float64)))[:4], rtol=1e-5)

    def test_common_shift_of_all_logits_changes_nothing(self):
        plain = finished([[1.0, 2.0, 3.0]], apply_softmax=True).scores
        np.testing.assert_array_equal(finished([[513.0, 514.0, 515.0]], apply_softmax=True).scores, plain)

    @given(
        logits=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
        above=st.floats(0, 50, width=32),
        temperature=st.floats(1e-6, 1e6),
    )
    def test_finite_logits_give_finite_scores(self, logits, above, temperature):
        normaliser = [min(max(logits) + above, float(np.finfo(np.float32).max))]
        plain = finished([logits], normaliser, return_token_logprobs=True)
        soft = finished([logits], apply_softmax=True, temperature=temperature)
        for values in (plain.scores, plain.token_logprobs, soft.scores):
            assert np.isfinite(values).all()
        assert np.all((plain.scores >= 0) & (plain.scores <= 1))
        np.testing.assert_allclose(soft.scores.sum(), 1.0, rtol=1e-5)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=6), st.integers(0, 5))
    def test_scores_of_an_item_do_not_depend_on_its_neighbours(self, logits, others):
        alone = finished([logits], apply_softmax=True).scores[0]
        crowd = finished([logits] + [logits[::-1]] * others, apply_softmax=True).scores[0]
        np.testing.assert_array_equal(crowd, alone)
