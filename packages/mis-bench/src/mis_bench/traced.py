"""`mis-bench run --trace` without its command line: requests sent when they are due."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from mis_bench.artifacts.parts import CallRecord, write_calls
from mis_bench.artifacts.trace import TraceResult, TraceRow, row_name
from mis_bench.measure import Call, Timed, closed_loop, counted, open_loop
from mis_bench.targets.base import BlockingTarget, CallFailed
from mis_bench.workload import Workload
from mis_bench.workloads.traces import MAX_ARRIVALS, Trace


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a trace.

    Attributes:
        warmups: Calls before it.
        timed: Its own.
        compilations: While it lasted, if the target tells.
        forgot: Whether the target forgot earlier queries before it.
    """

    warmups: Sequence[Call]
    timed: Timed
    compilations: float | None
    forgot: bool

    @property
    def rows(self) -> list[TraceRow]:
        """One row for every number of items, rising, and one for all."""
        calls, seconds = self.timed.calls, self.timed.seconds
        sizes = sorted({call.workload.num_items for call in calls})
        by_size = [[call for call in calls if call.workload.num_items == size] for size in sizes]
        rows = [TraceRow.of(some, size, seconds) for size, some in zip(sizes, by_size, strict=True)]
        return [*rows, TraceRow.of(calls, None, seconds)]

    @property
    def records(self) -> list[CallRecord]:
        """Lines of `calls.jsonl`: warm-ups, then the trace."""
        numbers: defaultdict[tuple[str, str], Iterator[int]] = defaultdict(count)
        return [
            CallRecord.of(call, name := row_name(call.workload.num_items), phase, next(numbers[name, phase]))
            for phase, calls in (("warmup", self.warmups), ("timed", self.timed.calls))
            for call in calls
        ]


def warm_ups(trace: Trace, runs: int) -> list[Workload]:
    """Return requests of all sizes of a trace, so many of each, with queries that it does not have."""
    first: dict[int, Workload] = {}
    for arrival in trace.arrivals:
        first.setdefault(arrival.workload.num_items, arrival.workload)
    return [first[size].another(MAX_ARRIVALS + number) for size in sorted(first) for number in range(runs)]


def play(
    target: BlockingTarget, trace: Trace, warmups: Sequence[Workload], on_call: Callable[[Call], None] = lambda _: None
) -> Played:
    """Warm a target up, make it forget, and play a trace to it.

    Args:
        target: Whom.
        trace: What and when.
        warmups: What is asked before, one after the other.
        on_call: Told of every finished call.

    Raises:
        CallFailed: the target failed to forget.
    """
    before_it = closed_loop(target, warmups, on_call=on_call)
    forgot = True
    try:
        target.forget()
    except CallFailed as error:
        if error.reason != "rejected":
            raise
        forgot = False  # it knows no way
    before = target.counts()
    timed = open_loop(target, trace.arrivals, on_call=on_call)
    return Played(before_it.calls, timed, counted(before, target.counts(), "compilations"), forgot)


def write_trace(folder: Path, result: TraceResult, records: Sequence[CallRecord]) -> None:
    """Write `trace.json` and `calls.jsonl`.

    Raises:
        OSError: a file cannot be written.
    """
    write_calls(folder, records)
    result.write(folder / "trace.json")
