"""Targets measured in alternating rounds of one run, so that a machine that slows down slows all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mis_bench.artifacts.comparison import Request
from mis_bench.comparison.series import Series
from mis_bench.measure import ask_in_chunks, chunks_of
from mis_bench.targets.base import BlockingTarget, Scores
from mis_bench.workload import Workload


@dataclass(frozen=True, slots=True)
class InTurn:
    """What was found: timings by target and chunk size, every request, and each answer of every target."""

    series: list[Series]
    requests: list[Request]
    answers: dict[str, list[Scores]]


def measure_in_turn(
    targets: Mapping[str, BlockingTarget],
    workload: Workload,
    *,
    rounds: int,
    chunk_sizes: Sequence[int],
    slow_items: Mapping[str, int],
    on_request: Callable[[int, int, str], None] = lambda *_: None,
) -> InTurn:
    """Ask every target for the workload once a round; every second round in reverse order.

    Round 0 warms up and is not counted. Before each request the target forgets earlier queries, so the query is
    computed anew in each request, once if the target keeps it for the chunks that follow.

    Args:
        targets: Whom, by name.
        workload: What; label softmaxes are asked for.
        rounds: Timed rounds.
        chunk_sizes: Items of a call; a request is as many calls as its items need. none is the whole request.
        slow_items: Targets that take only the first items, and how many.
        on_request: Told after every request how many were made, how many there will be, and whose it was.
    """
    asked = replace(workload, apply_softmax=True)
    parts = {name: _first(asked, slow_items.get(name, asked.num_items)) for name in targets}
    entries = [(name, size) for name, part in parts.items() for size in _sizes(chunk_sizes, part.num_items)]
    requests: list[Request] = []
    answers: dict[str, list[Scores]] = {name: [] for name in targets}
    for number in range(rounds + 1):
        for name, size in entries if number % 2 == 0 else reversed(entries):
            request, scores = _ask(name, targets[name], parts[name], size, number)
            requests.append(request)
            if scores is not None:
                answers[name].append(scores)
            on_request(len(requests), len(entries) * (rounds + 1), name)
    return InTurn([Series.of(requests, *entry, parts[entry[0]].num_items) for entry in entries], requests, answers)


def _first(workload: Workload, items: int) -> Workload:
    return replace(workload, items=workload.items[:items])


def _sizes(chunk_sizes: Sequence[int], items: int) -> list[int]:
    """Return chunk sizes cut to the request, each once, rising; the whole request if there are none."""
    return sorted({min(size, items) for size in chunk_sizes or [items]})


def _ask(
    name: str, target: BlockingTarget, workload: Workload, chunk_items: int, number: int
) -> tuple[Request, Scores | None]:
    """Ask chunk after chunk, up to the first failure; return the request, and the scores if all were answered."""
    asked = ask_in_chunks(target, chunks_of(workload, chunk_items), forget=True)
    request = Request(
        target=name,
        chunk_items=chunk_items,
        round=number,
        seconds=asked.seconds,
        failure=asked.failure,
        message=asked.message[:300],
        cached_tokens=asked.cached_tokens,
    )
    return request, asked.scores
