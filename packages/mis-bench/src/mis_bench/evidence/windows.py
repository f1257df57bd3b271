"""What a window must hold: how many requests, which ones, and when they were due."""

import math
from collections.abc import Iterator
from itertools import islice, takewhile

from mis_bench.evidence.recorded import RecordedWindow, at
from mis_bench.measuring.demand import ENDLESS
from mis_bench.results.plan import Case
from mis_bench.traces import MAX_ARRIVALS, Trace, arrival_times

LATE_S = 1.0
"""How long before the end of a load a request may have been due that was never sent, for want of a processor."""


def window_faults(case: Case, found: RecordedWindow, trace: Trace | None, rate: float | None) -> Iterator[str]:
    """Yield what is wrong with a window.

    Args:
        case: Whose.
        found: The window with its requests.
        trace: Of the case, if it plays one that can be built here.
        rate: At which requests arrived, of an open load.
    """
    line, window, calls = found
    where = f"{at(line)}: the window of {case.name}, {window.phase}, round {window.round}"
    if window.calls != len(calls):
        yield f"{where}, has {window.calls:,} requests, but {len(calls):,} are recorded"
        return
    done_s = max((call.done_s for _, call in calls), default=0.0)
    if not math.isclose(window.seconds, done_s, rel_tol=1e-9, abs_tol=1e-12):
        yield f"{where}, took {window.seconds:g} s, but its last request was over after {done_s:g} s"
    is_recorded = ":" in case.workload.name
    if is_recorded and trace is None:
        return  # its file is not here
    first, planned = _planned(case, found, trace)
    if planned is not None and len(calls) != planned:
        yield f"{where}, has {len(calls):,} requests, but {planned:,} were planned"
    numbers = sorted(call.number for _, call in calls)
    if numbers != list(range(first, first + len(numbers))):
        yield f"{where}: its requests are not numbered from {first} on, each once"
        return
    for number, call in calls if window.phase != "warmup" else ():
        items = trace.arrivals[call.number].workload.num_items if trace else case.workload.num_items
        if call.items != items:
            yield f"{at(number)}: request {call.number} of {case.name} has {items} items, not {call.items}"
            break
    if window.phase != "warmup":
        yield from _due(case, found, trace, rate)


def _planned(case: Case, found: RecordedWindow, trace: Trace | None) -> tuple[int, int | None]:
    """Return the number of the first request, and how many there are; None if time decides."""
    window = found.window
    if window.phase == "warmup":
        sizes = {each.workload.num_items for each in trace.arrivals} if trace else {case.workload.num_items}
        return MAX_ARRIVALS, case.warmups * len(sizes)
    if trace is not None:
        return 0, len(trace.arrivals)
    return (window.round - 1) * (case.load.requests or ENDLESS) + 1, case.load.requests


def _due(case: Case, found: RecordedWindow, trace: Trace | None, rate: float | None) -> Iterator[str]:
    """Yield what is wrong with times at which requests were due."""
    load, window, calls = case.load, found.window, found.calls
    if trace is not None:
        times = [arrival.arrival_s for arrival in trace.arrivals]
    elif rate is not None:
        arrivals, until = arrival_times(f"0 {window.round}", rate), load.seconds
        if until is None:
            times = [next(arrivals) for _ in calls]
        else:
            times = list(islice(takewhile(lambda due_s: due_s < until, arrivals), len(calls) + MAX_ARRIVALS))
    else:
        times = [None] * len(calls)
    first = min((call.number for _, call in calls), default=0)
    for line, call in calls:
        due_s = times[call.number - first] if call.number - first < len(times) else math.nan
        if call.due_s != due_s and (due_s is None or not math.isclose(call.due_s or 0.0, due_s, abs_tol=1e-6)):
            yield f"{at(line)}: request {call.number} of {case.name} was due after {due_s} s, not {call.due_s}"
            return
    if load.seconds is None:
        return
    if rate is None and not calls:
        yield f"{at(found.line)}: {case.name} sent nothing in round {window.round}"
    late = times[len(calls)] if rate is not None and len(calls) < len(times) else None
    was_busy = any(call.done_s >= load.seconds for _, call in calls)
    if late is not None and late < load.seconds - LATE_S and not was_busy:
        yield (
            f"{at(found.line)}: the window of {case.name}, round {window.round}, ends with {len(calls):,} of "
            f"{len(times):,} requests"
        )
