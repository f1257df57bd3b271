"""Asking targets: whole requests, or item by item, with answers that have the right shape."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mis_bench.measure import closed_loop, forgetting
from mis_bench.targets.base import BlockingTarget, CallFailed, Scores, fitting
from mis_bench.validation.cases import one_by_one
from mis_bench.workload import Workload


def ask(target: BlockingTarget, workload: Workload) -> Scores:
    """Return the scores of a request.

    Raises:
        CallFailed: there are none, or not one for each item and label.
    """
    return fitting(target.score(workload).scores, workload)


@dataclass(frozen=True, slots=True)
class Serial:
    """Item by item, query and item computed anew for each.

    Attributes:
        target: Whom to ask.
        splits: Whether a request is sent for each item, and the query forgotten in between. Else the target
            itself computes item by item.
    """

    target: BlockingTarget
    splits: bool

    def scores(self, workload: Workload) -> Scores:
        """Return the scores of all items.

        Raises:
            CallFailed: a request failed.
        """
        return np.concatenate([ask(self.target, part) for part in forgetting(self.target, self._parts(workload))])

    def milliseconds(self, workload: Workload) -> float:
        """Return how long all items took, without the time to forget.

        Raises:
            CallFailed: a request failed.
        """
        return total_milliseconds(self.target, self._parts(workload))

    def _parts(self, workload: Workload) -> list[Workload]:
        return one_by_one(workload) if self.splits else [workload]


def total_milliseconds(target: BlockingTarget, workloads: Sequence[Workload]) -> float:
    """Return how long requests took, one after the other, the query forgotten before each.

    Raises:
        CallFailed: a request failed.
    """
    timed = closed_loop(target, forgetting(target, workloads))
    for call in timed.calls:
        if call.failure is not None:
            raise CallFailed(call.failure, call.message)
    return sum(timed.latencies_ms)
