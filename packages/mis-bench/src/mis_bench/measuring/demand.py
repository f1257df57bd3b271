"""Which requests a case sends: the same numbers are the same requests for every target."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Self

from mis_bench.measuring.loop import DueRequest
from mis_bench.results.plan import Case, WorkloadPart
from mis_bench.targets.target import CallFailed, Target
from mis_bench.traces import MAX_ARRIVALS, Trace, arrival_times, build_trace
from mis_bench.workload import Workload, build_workload

AFTERWARDS = "afterwards-20-1-10"
"""The small request that a target must answer after a load that it was to survive."""

GATED = 0
"""Number of the request by which scores are checked."""

ENDLESS = 1000
"""Numbers that a window takes whose requests are not counted."""


def build(part: WorkloadPart) -> Workload:
    """Build the workload that a plan describes.

    Raises:
        WorkloadNameError: there is none of that name.
    """
    workload = build_workload(part.name)
    items = workload.items[: part.num_items]
    return replace(workload, apply_softmax=part.apply_softmax, items=items).within(part.vocab_size)


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests of a case.

    Attributes:
        case: Whose.
        workload: The request of number 0.
        trace: Requests and when they arrive, instead of a workload's.
    """

    case: Case
    workload: Workload
    trace: Trace | None = None

    @classmethod
    def of(cls, case: Case) -> Self:
        """Return a case's demand: requests of a workload, or of a trace."""
        part = case.workload
        if ":" not in part.name:
            return cls(case, build(part))
        trace = build_trace(part.name).within(part.vocab_size)
        return cls(case, trace.arrivals[0].workload, trace)

    def numbered(self, number: int) -> Workload:
        """Return the request of a number; those of a warm case share one query or a few, in turn."""
        other = self.workload.another(number)
        if self.case.cache == "cold":
            return other
        return replace(other, query=self.workload.another(number % self.case.queries).query)

    def encoded(self, target: Target, number: int, workload: Workload, due_s: float | None = None) -> DueRequest:
        """Encode a request, in chunks if the client is to cut it."""
        size, items = self.case.chunk_items or workload.num_items, workload.items
        pieces = [replace(workload, items=items[start : start + size]) for start in range(0, len(items), size)]
        parts, refusal = [], None
        try:
            parts = [target.prepare(piece) for piece in pieces]
        except CallFailed as error:
            refusal = error
        return DueRequest(number, workload.num_items, workload.num_tokens, parts, due_s, refusal)

    def at_rate(self, rate: float) -> Self:
        """Return the demand of the same case with requests that arrive so many a second."""
        load = self.case.load.model_copy(update={"rate": rate})
        return replace(self, case=self.case.model_copy(update={"load": load}))

    def known(self, target: Target) -> Iterator[DueRequest]:
        """Yield a request of each query that the target is to know.

        It has one item where there are many queries, and as many as a call has where requests are cut into calls.
        """
        items = 1 if self.case.queries > 1 else self.case.chunk_items or None
        for number in range(self.case.queries):
            workload = self.numbered(number)
            yield self.encoded(target, number, replace(workload, items=workload.items[:items]))

    def warmups(self, target: Target) -> Iterator[DueRequest]:
        """Yield warm-up requests; of a trace so many of each size. Their queries are not asked again."""
        sizes = {0: self.workload}
        if self.trace is not None:
            sizes = {each.workload.num_items: each.workload for each in reversed(self.trace.arrivals)}
        numbers = count(MAX_ARRIVALS)
        for _, workload in sorted(sizes.items()):
            for number in islice(numbers, self.case.warmups):
                yield self.encoded(target, number, replace(self, workload=workload).numbered(number))

    def afterwards(self, target: Target) -> DueRequest:
        """Return the request that shows that a target survived."""
        small = build_workload(f"{AFTERWARDS}@{self.workload.num_labels}")
        return self.encoded(target, GATED, small.within(self.case.workload.vocab_size))

    def share(self, finished: int, done_s: float) -> float:
        """Return how much of a window is over.

        Args:
            finished: Requests that are.
            done_s: When the last of them was, in seconds since the window began.
        """
        load = self.case.load
        requests = load.requests if self.trace is None else len(self.trace.arrivals)
        if requests is not None:
            return finished / requests
        return 1.0 if load.seconds is None else min(1.0, done_s / load.seconds)

    def window(self, target: Target, turn: int) -> Iterator[DueRequest]:
        """Yield the requests of a round; endless if the load's time decides how many there are."""
        if self.trace is not None:
            for number, arrival in enumerate(self.trace.arrivals):
                yield self.encoded(target, number, arrival.workload, arrival.arrival_s)
            return
        load = self.case.load
        first = (turn - 1) * (load.requests or ENDLESS) + 1
        times = None if load.rate is None else arrival_times(f"0 {turn}", load.rate)
        for number in count(first) if load.requests is None else range(first, first + load.requests):
            due = None if times is None else next(times)
            if due is not None and load.seconds is not None and due >= load.seconds:
                return
            yield self.encoded(target, number, self.numbered(number), due)
