"""Timing of calls: closed loops, in which each caller waits for its answer, and open ones, which keep to a schedule."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from mis_bench.targets.base import BlockingTarget, CallFailed, Reply, Scores, fitting
from mis_bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a target, timed.

    Attributes:
        workload: What was asked.
        began_s: When it was sent, in seconds since the loop began.
        latency_s: From sending to the whole answer; in an open loop from the time it was due.
        reply: The answer, or None.
        failure: Why there is none: `timeout`, `http_error`, `out_of_memory`, and so on (`CallFailed.reason`).
        message: One sentence about the failure.
    """

    workload: Workload
    began_s: float
    latency_s: float
    reply: Reply | None = None
    failure: str | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return self.reply is not None


@dataclass(frozen=True, slots=True)
class Timed:
    """The calls of one loop, in the order in which they were sent, and how long the loop took."""

    calls: Sequence[Call]
    seconds: float
    failures: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        counts: dict[str, int] = {}
        for call in self.calls:
            if call.failure is not None:
                counts[call.failure] = counts.get(call.failure, 0) + 1
        object.__setattr__(self, "failures", counts)

    @property
    def items_per_second(self) -> float:
        """Items of answered calls over the loop's time."""
        return sum(call.workload.num_items for call in self.calls if call.ok) / self.seconds

    @property
    def requests_per_second(self) -> float:
        """Answered calls over the loop's time."""
        return sum(call.ok for call in self.calls) / self.seconds

    @property
    def success_rate(self) -> float:
        """Share of calls that were answered; 0 if there were none."""
        return sum(call.ok for call in self.calls) / len(self.calls) if self.calls else 0.0

    @property
    def latencies_ms(self) -> list[float]:
        """Latencies of answered calls, in milliseconds."""
        return [call.latency_s * 1e3 for call in self.calls if call.ok]


def one_call(target: BlockingTarget, workload: Workload, *, since: float, due: float | None = None) -> Call:
    """Ask once.

    Args:
        target: Whom.
        workload: What.
        since: Start of the loop, of `time.perf_counter`.
        due: When the call should have been sent; latency counts from there, so that a late sender is not hidden
            (coordinated omission).
    """
    began = time.perf_counter()
    start = began if due is None else due
    try:
        reply = target.score(workload)
        latency = time.perf_counter() - start
        fitting(reply.scores, workload)
    except CallFailed as error:
        return Call(workload, began - since, time.perf_counter() - start, None, error.reason, str(error))
    return Call(workload, began - since, latency, reply)


def closed_loop(
    target: BlockingTarget,
    workloads: Iterable[Workload],
    *,
    concurrency: int = 1,
    until_s: float | None = None,
    on_call: Callable[[Call], None] = lambda _: None,
) -> Timed:
    """Let callers ask one after another, each as soon as its last answer came.

    Args:
        target: Whom; asked from `concurrency` threads at once.
        workloads: What, taken in order; may be endless if `until_s` is given.
        concurrency: Callers.
        until_s: No call is sent later than this after the start.
        on_call: Told of every finished call, from any thread.
    """
    calls: list[tuple[int, Call]] = []
    waiting, lock = enumerate(iter(workloads)), threading.Lock()
    since = time.perf_counter()

    def take() -> tuple[int, Workload] | None:
        if until_s is not None and time.perf_counter() - since >= until_s:
            return None
        with lock:
            return next(waiting, None)

    def caller() -> None:
        while (taken := take()) is not None:
            number, workload = taken
            call = one_call(target, workload, since=since)
            calls.append((number, call))
            on_call(call)

    _run_all([caller] * concurrency)
    seconds = time.perf_counter() - since
    return Timed([call for _, call in sorted(calls, key=lambda pair: pair[0])], seconds)


def open_loop(
    target: BlockingTarget,
    arrivals: Iterable[tuple[float, Workload]],
    *,
    most_at_once: int = 256,
    on_call: Callable[[Call], None] = lambda _: None,
) -> Timed:
    """Send calls when they are due, whether or not earlier ones were answered.

    Args:
        target: Whom.
        arrivals: Seconds after the start, rising, and what is asked then.
        most_at_once: Threads; a call that finds none free is sent late, which its latency shows.
        on_call: Told of every finished call, from any thread.
    """
    calls: list[Call] = []
    since = time.perf_counter()

    def send(due: float, workload: Workload) -> None:
        call = one_call(target, workload, since=since, due=since + due)
        calls.append(call)
        on_call(call)

    with ThreadPoolExecutor(most_at_once) as pool:
        sent = []
        for due, workload in arrivals:
            time.sleep(max(0.0, since + due - time.perf_counter()))
            sent.append(pool.submit(send, due, workload))
        for each in sent:
            each.result()
    return Timed(sorted(calls, key=lambda call: call.began_s), time.perf_counter() - since)


@dataclass(frozen=True, slots=True)
class Chunked:
    """One request that a client asked in chunks, up to the first failure.

    Attributes:
        calls: One for each chunk that was sent.
        seconds: From the first call to the end of the last.
        failure: Why it was not answered, as in `Call`.
        message: One sentence about the failure.
    """

    calls: Sequence[Call]
    seconds: float
    failure: str | None = None
    message: str = ""

    @property
    def scores(self) -> Scores | None:
        """Scores of all items, or None if a chunk failed."""
        if self.failure is not None:
            return None
        return np.concatenate([call.reply.scores for call in self.calls if call.reply is not None])

    @property
    def cached_tokens(self) -> int | None:
        """Query tokens that the target had kept before the first chunk, where it tells."""
        first = self.calls[0].reply if self.calls else None
        return first.cached_tokens if first else None


def chunks_of(workload: Workload, size: int) -> list[Workload]:
    """Cut a request into requests of at most `size` items."""
    return [
        replace(workload, items=workload.items[start : start + size]) for start in range(0, workload.num_items, size)
    ]


def ask_in_chunks(target: BlockingTarget, chunks: Sequence[Workload], *, forget: bool) -> Chunked:
    """Ask for one chunk after the other.

    Args:
        target: Whom.
        chunks: What, from `chunks_of`.
        forget: Make the target forget earlier queries first, outside the time.
    """
    if forget:
        try:
            target.forget()
        except CallFailed as error:
            return Chunked([], 0.0, error.reason, str(error))
    calls: list[Call] = []
    began = time.perf_counter()
    for chunk in chunks:
        calls.append(one_call(target, chunk, since=began))
        if not calls[-1].ok:
            break
    return Chunked(calls, time.perf_counter() - began, calls[-1].failure, calls[-1].message)


def forgetting(target: BlockingTarget, workloads: Iterable[Workload]) -> Iterator[Workload]:
    """Yield workloads, each after the target forgot earlier queries; for closed loops of one caller."""
    for workload in workloads:
        target.forget()
        yield workload


def counted(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """Return how far a count of `Target.counts` rose; None if the target does not tell, or began to count anew."""
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return after[name] - before[name]


def _run_all(functions: Sequence[Callable[[], None]]) -> None:
    if len(functions) == 1:
        functions[0]()  # no thread to wake: a single caller is timed as it is
        return
    with ThreadPoolExecutor(len(functions)) as pool:
        for each in [pool.submit(function) for function in functions]:
            each.result()
