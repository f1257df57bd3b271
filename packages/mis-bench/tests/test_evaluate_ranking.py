"""nDCG and MRR, whose equal scores are in no order."""

import itertools
import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_bench.evaluate.answers import RowRanking
from mis_bench.evaluate.ranking import ndcg, ranking_figures, reciprocal_ranks


def ranking(scores: list[float], relevance: list[float]) -> RowRanking:
    return RowRanking(0, np.array(scores, float), np.array(relevance, float))


def plain(scores: list[float], relevance: list[float], cutoff: int) -> tuple[float, float]:
    """nDCG and the reciprocal rank as they are written in books, the mean over all orders of equal scores."""
    ideal = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(sorted(relevance, reverse=True)[:cutoff]))
    found = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            gains = [relevance[index] for index in order]
            gained = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains[:cutoff]))
            found.append((gained / ideal, 1 / (1 + next(rank for rank, gain in enumerate(gains) if gain > 0))))
    return tuple(np.mean(found, axis=0))


@given(st.data(), st.integers(1, 6), st.sampled_from([1, 2, 10]))
def test_they_are_the_mean_over_all_orders_of_equal_scores(data: st.DataObject, size: int, cutoff: int) -> None:
    scores = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    relevance = data.draw(st.lists(st.sampled_from([0, 1, 2, 0.5]), min_size=size, max_size=size))
    each = [ranking(scores, relevance)]
    if not any(relevance):
        assert np.isnan(ndcg(each, cutoff)).all()
        assert np.isnan(reciprocal_ranks(each)).all()
        return
    gain, reciprocal = plain(scores, relevance, cutoff)
    assert ndcg(each, cutoff)[0] == pytest.approx(gain)
    assert reciprocal_ranks(each)[0] == pytest.approx(reciprocal)


def test_equal_scores_are_not_ranked_by_the_names_of_documents() -> None:
    """As trec_eval does, which takes the greatest name first; a constant model would be perfect, or hopeless."""
    judged = {"q": {"0": 0, "1": 1}}
    run = {"q": {"0": 0.5, "1": 0.5}}
    assert [each.value for each in ir_measures.iter_calc([ir_measures.RR], judged, run)] == [1.0]
    for relevance in ([0, 1], [1, 0]):
        assert reciprocal_ranks([ranking([0.5, 0.5], relevance)])[0] == pytest.approx(0.75)
        assert ndcg([ranking([0.5, 0.5], relevance)], 1)[0] == pytest.approx(0.5)


def test_scores_that_differ_in_the_last_bits_are_different() -> None:
    """trec_eval keeps scores in single precision."""
    close = [0.5, math.nextafter(0.5, 1)]
    assert reciprocal_ranks([ranking(close, [1, 0])])[0] == 0.5
    assert reciprocal_ranks([ranking(close, [0, 1])])[0] == 1.0


def test_many_equal_documents_are_no_trouble() -> None:
    relevance = np.zeros(2000)
    relevance[:700] = 1
    found = reciprocal_ranks([RowRanking(0, np.zeros(2000), relevance)])[0]
    rng = np.random.default_rng(0)
    ranks = [1 + np.argmax(rng.permutation(relevance)) for _ in range(4000)]
    assert found == pytest.approx(np.mean(1 / np.array(ranks)), abs=0.02)


def test_figures_are_weighted_means_of_the_rows_that_have_them() -> None:
    rows = [ranking([3, 2, 1], [0, 1, 0]), ranking([1, 2], [0, 0]), ranking([1, 2], [0, 2])]
    found = ranking_figures(rows, np.array([1.0, 5.0, 3.0]), ("ndcg@10", "ndcg@1", "coverage@0.9"))
    assert found.keys() == {"ndcg@10", "ndcg@1", "mrr", "spearman"}
    assert found["mrr"].value == pytest.approx((0.5 + 3 * 1.0) / 4)
    assert found["ndcg@1"].value == pytest.approx(3 / 4)
    assert found["ndcg@10"].value == pytest.approx((1 / math.log2(3) + 3) / 4)
    assert found["spearman"].value == pytest.approx((0 + 3 * 1) / 4)  # the second row has no order
    assert found["mrr"].resampled(np.array([[2.0, 1.0, 0.0]]))[0] == pytest.approx(0.5)
