"""Figures under many weightings of the same answers at once: what is sorted is sorted once."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

from mis_bench.evaluate.resampling import Resampled, Values, Weights

_NEARLY = 1e-12  # a share that sums of weights miss by rounding


def mean_of(each: Float64[np.ndarray, " answers"]) -> Resampled:
    """Return the weighted mean of a number for each answer; NaN of a number is left out."""
    known = np.isfinite(each)
    of_known = np.where(known, each, 0.0)

    def resampled(weights: Weights) -> Values:
        return _ratio(weights @ of_known, weights @ known.astype(np.float64))

    return resampled


def mean_over(parts: Sequence[Resampled]) -> Resampled:
    """Return the mean of figures, of those that are defined in a resample."""

    def resampled(weights: Weights) -> Values:
        each = np.array([part(weights) for part in parts]).reshape(len(parts), len(weights))
        known = np.isfinite(each)
        return _ratio(np.where(known, each, 0.0).sum(axis=0), known.sum(axis=0).astype(np.float64))

    return resampled


def macro_f1(
    shares: Float64[np.ndarray, "answers classes"],
    classes: Int64[np.ndarray, "answers classes"],
    truth: Int64[np.ndarray, " answers"],
) -> Resampled:
    """Return the mean over classes of F1, of those that any answer has or decides for.

    Args:
        shares: What of its decision each answer gives to each of its classes.
        classes: Their numbers; -1 is padding.
        truth: Number of the right class of each.
    """
    from scipy.sparse import csr_array  # late: `--help` does not need it

    given = np.where(classes >= 0, shares, 0.0)
    answers, columns = given.nonzero()
    size = int(classes.max()) + 1
    decided = csr_array((given[answers, columns], (answers, classes[answers, columns])), shape=(len(truth), size))
    right = csr_array((np.ones(len(truth)), (np.arange(len(truth)), truth)), shape=(len(truth), size))
    both = decided.multiply(right).tocsr()

    def resampled(weights: Weights) -> Values:
        sums = [(each.T @ weights.T).T for each in (both, decided, right)]
        either = sums[1] + sums[2]
        known = either > 0
        return _ratio((2 * _ratio(sums[0], either, 0.0)).sum(axis=1), known.sum(axis=1).astype(np.float64))

    return resampled


def auc(
    score: Float64[np.ndarray, " answers"],
    is_positive: Bool[np.ndarray, " answers"],
    chosen: Int64[np.ndarray, " chosen"],
) -> Resampled:
    """Return the area under the ROC curve of some answers, equal scores counting half; NaN where a side is empty."""
    order = chosen[np.argsort(score[chosen], kind="stable")]
    first, last = _blocks(score[order])
    positive = is_positive[order].nonzero()[0]
    negative = ~is_positive[order]

    def resampled(weights: Weights) -> Values:
        sorted_weights = weights[:, order]
        below = _summed(sorted_weights * negative)
        of_positive = sorted_weights[:, positive]
        halves = below[:, first[positive]] + below[:, last[positive] + 1]
        return _ratio((of_positive * halves).sum(axis=1) / 2, of_positive.sum(axis=1) * below[:, -1])

    return resampled


def spearman(
    x: Float64[np.ndarray, " answers"], y: Float64[np.ndarray, " answers"], chosen: Int64[np.ndarray, " chosen"]
) -> Resampled:
    """Return the correlation of the ranks of some answers, equal ones sharing the mean of theirs.

    A weight counts as so many answers of this kind. NaN where all x or all y are equal.
    """
    ranks_of_x, ranks_of_y = _mid_ranks(x[chosen]), _mid_ranks(y[chosen])

    def resampled(weights: Weights) -> Values:
        own = weights[:, chosen]
        middle = own.sum(axis=1, keepdims=True) / 2
        from_x, from_y = ranks_of_x(own) - middle, ranks_of_y(own) - middle
        weighted = own * from_x
        covered = (weighted * from_y).sum(axis=1)
        spread = (weighted * from_x).sum(axis=1) * (own * from_y**2).sum(axis=1)
        return _ratio(covered, np.sqrt(np.where(spread > 0, spread, np.nan)))

    return resampled


def coverage(
    confidence: Float64[np.ndarray, " answers"], correct: Float64[np.ndarray, " answers"], wanted: float
) -> Resampled:
    """Return the largest share of answers, the most confident first, that are right at least as often as wanted.

    Answers of equal confidence are in or out together.
    """
    order = np.argsort(-confidence, kind="stable")
    _, last = _blocks(confidence[order])
    ends = np.unique(last)

    def resampled(weights: Weights) -> Values:
        sorted_weights = weights[:, order]
        kept = np.cumsum(sorted_weights, axis=1)
        right = np.cumsum(sorted_weights * correct[order], axis=1)
        is_enough = right[:, ends] >= (wanted - _NEARLY) * kept[:, ends]
        return _ratio(np.where(is_enough, kept[:, ends], 0.0).max(axis=1), kept[:, -1])

    return resampled


def _mid_ranks(values: Float64[np.ndarray, " chosen"]) -> Callable[[Weights], Weights]:
    """Return what gives each its rank among all: the weight of lesser ones, and half of that of equal ones."""
    order = np.argsort(values, kind="stable")
    first, last = _blocks(values[order])
    back = np.argsort(order, kind="stable")
    first, last = first[back], last[back]

    def ranks(weights: Weights) -> Weights:
        below = _summed(weights[:, order])
        return (below[:, first] + below[:, last + 1]) / 2

    return ranks


def _blocks(
    ordered: Float64[np.ndarray, " answers"],
) -> tuple[Int64[np.ndarray, " answers"], Int64[np.ndarray, " answers"]]:
    """Return for each of a sorted array the indices of the first and of the last that are equal to it."""
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)
    lens = np.diff(starts, append=len(ordered))
    return np.repeat(starts, lens), np.repeat(starts + lens - 1, lens)


def _summed(each: Weights) -> Weights:
    """Return sums of the first 0, 1, 2 and so on of each row."""
    found = np.zeros((each.shape[0], each.shape[1] + 1))
    np.cumsum(each, axis=1, out=found[:, 1:])
    return found


def _ratio(above: np.ndarray, below: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    """Divide; `otherwise` where there is nothing to divide by."""
    return np.divide(above, below, out=np.full(np.shape(above), otherwise), where=below > 0)
