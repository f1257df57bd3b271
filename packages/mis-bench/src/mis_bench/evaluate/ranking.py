"""Figures of rankings: nDCG, reciprocal rank and Spearman's correlation of each row; equal scores have no order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from scipy.special import gammaln

from mis_bench.evaluate import sums
from mis_bench.evaluate.answers import RowRanking
from mis_bench.evaluate.figures import Figure


def ranking_figures(
    rankings: Sequence[RowRanking], weight: Float64[np.ndarray, " answers"], names: Sequence[str]
) -> dict[str, Figure]:
    """Return the figures of rankings; those that are not defined are left out.

    Rows without a relevant document count for neither nDCG nor MRR, and such with documents of one relevance or one
    score not for Spearman's correlation.

    Args:
        rankings: At least one.
        weight: Of each.
        names: Which nDCG are wanted: `ndcg@10` and so on.

    Raises:
        ModuleNotFoundError: ir-measures or scikit-learn is missing.
    """
    cutoffs = {name: int(name.partition("@")[2]) for name in names if name.startswith("ndcg@")}
    each = {name: ndcg(rankings, cutoff) for name, cutoff in cutoffs.items()}
    each |= {"mrr": reciprocal_ranks(rankings), "spearman": _correlations(rankings)}
    made: dict[str, Figure] = {}
    for name, values in each.items():
        if np.isfinite(values).any():
            mean = sums.mean_of(values)
            made[name] = Figure(float(mean(weight[None])[0]), mean)
    return made


def ndcg(rankings: Sequence[RowRanking], cutoff: int) -> Float64[np.ndarray, " answers"]:
    """Return the nDCG of the first documents of each, with relevance as gain; NaN where none is relevant.

    That of ir-measures, which is trec_eval's. It ranks equal scores by the names of documents; where there are some, or
    relevance is no whole number, it is scikit-learn's: the mean over all orders of equal documents (McSherry, Najork:
    Computing information retrieval performance measures efficiently in the presence of tied scores, 2008).
    """
    import ir_measures
    from sklearn.metrics import ndcg_score

    found = _by_library(rankings, ir_measures.nDCG @ cutoff)
    for index, ranking in enumerate(rankings):
        if np.isnan(found[index]) and ranking.relevance.any():
            one = len(ranking.scores) == 1  # which scikit-learn refuses
            found[index] = 1.0 if one else ndcg_score(ranking.relevance[None], ranking.scores[None], k=cutoff)
    return found


def reciprocal_ranks(rankings: Sequence[RowRanking]) -> Float64[np.ndarray, " answers"]:
    """Return one over the rank of the first relevant document of each; NaN where none is relevant.

    That of ir-measures, or where scores are equal the mean over all orders of equal documents.
    """
    import ir_measures

    found = _by_library(rankings, ir_measures.RR)
    for index, ranking in enumerate(rankings):
        if np.isnan(found[index]) and ranking.relevance.any():
            found[index] = _expected_reciprocal_rank(ranking.scores, ranking.relevance > 0)
    return found


def _by_library(rankings: Sequence[RowRanking], measure: Any) -> Float64[np.ndarray, " answers"]:
    """Return what ir-measures says of those rankings that it ranks by scores alone; NaN of the others."""
    import ir_measures

    found = np.full(len(rankings), np.nan)
    plain = {
        str(index): ranking
        for index, ranking in enumerate(rankings)
        if ranking.relevance.any()
        and len(np.unique(ranking.scores)) == len(ranking.scores)
        and (ranking.relevance == np.round(ranking.relevance)).all()
    }
    if plain:
        # It keeps scores as they are in a run, and reads whole numbers only in judgements.
        run = {key: _by_document(_ranks(each.scores)) for key, each in plain.items()}
        judged = {
            key: {name: int(value) for name, value in _by_document(each.relevance).items()}
            for key, each in plain.items()
        }
        for metric in ir_measures.iter_calc([measure], judged, run):
            found[int(metric.query_id)] = metric.value
    return found


def _by_document(values: Float64[np.ndarray, " documents"]) -> dict[str, float]:
    return {str(index): value for index, value in enumerate(values.tolist())}


def _ranks(scores: Float64[np.ndarray, " documents"]) -> Float64[np.ndarray, " documents"]:
    """Return numbers in the order of different scores; trec_eval compares in single precision, where some are equal."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(len(scores))
    return ranks


def _expected_reciprocal_rank(
    scores: Float64[np.ndarray, " documents"], is_relevant: Bool[np.ndarray, " documents"]
) -> float:
    """Return the mean over all orders of equal documents.

    Of `n` equal ones with `r` relevant ones, the first of these is the `j`-th in a share C(n - j, r - 1) / C(n, r) of
    the orders.
    """
    best = scores[is_relevant].max()
    above, equal = int((scores > best).sum()), int((scores == best).sum())
    relevant = int((is_relevant & (scores == best)).sum())
    first = np.arange(1, equal - relevant + 2)
    shares = np.exp(_log_choose(equal - first, relevant - 1) - _log_choose(equal, relevant))
    return float((shares / (above + first)).sum())


def _log_choose(count: object, chosen: int) -> np.ndarray:
    return gammaln(np.asarray(count) + 1.0) - gammaln(chosen + 1.0) - gammaln(np.asarray(count) - chosen + 1.0)


def _correlations(rankings: Sequence[RowRanking]) -> Float64[np.ndarray, " answers"]:
    """Return Spearman's correlation of scores and relevance of each; NaN where one of them is the same throughout."""
    found = [
        sums.spearman(each.scores, each.relevance, np.arange(len(each.scores)))(np.ones((1, len(each.scores))))[0]
        for each in rankings
    ]
    return np.array(found, np.float64)
