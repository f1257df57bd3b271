"""What targets that compute in this process share."""

import os
import threading
from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float, Int64

from mis_bench.targets.base import About, CallFailed, Reply, Scores
from mis_bench.workload import Workload

Logits = Float[np.ndarray, "items labels"]
LogSumExps = Float[np.ndarray, " items"]

_NO_MEMORY = ("resource_exhausted", "out of memory", "can't allocate memory")


class LocalModel(ABC):
    """A model of another library: takes token ids only, and one call at a time, which uses all cores or the whole GPU.

    Args:
        about: What it is.
        vocab_size: Token ids are below it.
        context_length: Most tokens of query and item.
    """

    def __init__(self, about: About, vocab_size: int, context_length: int) -> None:
        self._about, self._vocab_size, self._context_length = about, vocab_size, context_length
        self._lock = threading.Lock()

    @abstractmethod
    def label_logits(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"], *, with_sums: bool
    ) -> tuple[Logits, LogSumExps | None]:
        """Return logits of the labels after every item, and the logs of the sums of exponentials of all logits.

        Args:
            query: Token ids, at least one.
            items: Token ids of each; an item may be empty.
            labels: Token ids.
            with_sums: Whether the sums are needed.

        Raises:
            CallFailed: the request cannot be served.
            RuntimeError: the library's own errors.
        """

    @property
    def about(self) -> About:
        """What it is."""
        return self._about

    def score(self, workload: Workload) -> Reply:
        """Score a workload of token ids.

        Raises:
            CallFailed: `rejected`, `out_of_memory` or `error`.
        """
        query, items = self._token_ids(workload)
        labels, with_sums = workload.label_token_ids.astype(np.int64), not workload.apply_softmax
        try:
            with self._lock:
                logits, sums = self.label_logits(query, items, labels, with_sums=with_sums)
        except RuntimeError as error:
            raise failure(error) from error
        return Reply(scores_of(logits, sums if with_sums else None))

    def forget(self) -> None:  # noqa: B027 - most need no other
        """Nothing, where nothing is kept between calls."""

    def counts(self) -> dict[str, float]:
        """Return `memory_bytes`, this process's resident memory."""
        return {"memory_bytes": float(resident_bytes())}

    def close(self) -> None:  # noqa: B027 - likewise
        """Nothing, where the model goes with its last target."""

    def _token_ids(self, workload: Workload) -> tuple[list[int], list[list[int]]]:
        """Return the query and items; raises `CallFailed`, `rejected`, if this model cannot take them."""
        if isinstance(workload.query, str):
            raise CallFailed("rejected", "This target takes token ids, not texts.")
        items = [np.asarray(item, np.int32) for item in workload.items]
        longest = len(workload.query) + max(map(len, items))
        if len(workload.query) == 0:
            raise CallFailed("rejected", "This target takes no empty query.")
        if longest > self._context_length:
            most = self._context_length
            raise CallFailed("rejected", f"A query and item of {longest} tokens exceed the context of {most}.")
        largest = int(np.concatenate([workload.query, workload.label_token_ids, *items]).max())
        if largest >= self._vocab_size:
            raise CallFailed("rejected", f"The token id {largest} exceeds the vocabulary of {self._vocab_size}.")
        return workload.query.tolist(), [item.tolist() for item in items]


def scores_of(logits: Logits, log_sum_exps: LogSumExps | None) -> Scores:
    """Turn label logits into full-vocabulary probabilities, or a softmax over the labels.

    Args:
        logits: Of the labels.
        log_sum_exps: Logs of the sums of the exponentials of all logits; None for the softmax over the labels.
    """
    from scipy.special import softmax  # late: `--help` does not need it

    logits = logits.astype(np.float64)
    if log_sum_exps is None:
        return softmax(logits, axis=1)
    return np.exp(logits - log_sum_exps.astype(np.float64)[:, None])


def failure(error: Exception) -> CallFailed:
    """Name an exception of a library, or the one that led to it: `out_of_memory` or `error`."""
    cause: BaseException | None = error
    while cause is not None:
        if any(words in str(cause).lower() for words in _NO_MEMORY):
            return CallFailed("out_of_memory", _first_line(error))
        cause = cause.__cause__ or cause.__context__
    return CallFailed("error", _first_line(error))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def resident_bytes() -> int:
    """Return this process's resident memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - not a file on a disk
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
