"""What targets that compute in this process share."""

import os

import numpy as np
from jaxtyping import Float

from mis_bench.targets.base import CallFailed, Scores
from mis_bench.workload import Workload


def token_ids(workload: Workload, vocab_size: int, context_length: int) -> tuple[list[int], list[list[int]]]:
    """Return the query and items as token ids.

    Raises:
        CallFailed: `rejected`: they are texts, the query is empty, or ids or lengths are beyond the model's.
    """
    if isinstance(workload.query, str):
        raise CallFailed("rejected", "This target takes token ids, not texts.")
    items = [np.asarray(item, np.int32) for item in workload.items]
    longest = len(workload.query) + max(map(len, items))
    if len(workload.query) == 0:
        raise CallFailed("rejected", "This target takes no empty query.")
    if longest > context_length:
        raise CallFailed("rejected", f"A query and item of {longest} tokens exceed the context of {context_length}.")
    largest = int(np.concatenate([workload.query, workload.label_token_ids, *items]).max())
    if largest >= vocab_size:
        raise CallFailed("rejected", f"The token id {largest} exceeds the vocabulary of {vocab_size}.")
    return workload.query.tolist(), [item.tolist() for item in items]


def scores_of(logits: Float[np.ndarray, "items labels"], log_sum_exp: Float[np.ndarray, " items"] | None) -> Scores:
    """Turn label logits into full-vocabulary probabilities, or a softmax over the labels.

    Args:
        logits: Of the labels.
        log_sum_exp: Log of the sum of the exponentials of all logits; None for the softmax over the labels.
    """
    logits = logits.astype(np.float64)
    if log_sum_exp is not None:
        return np.exp(logits - log_sum_exp.astype(np.float64)[:, None])
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def resident_bytes() -> int:
    """Return this process's resident memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - not a file on a disk
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
