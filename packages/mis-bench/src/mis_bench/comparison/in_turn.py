"""Targets measured in alternating rounds of one run, so that a machine that slows down slows all of them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mis_bench.artifacts.comparison import Request
from mis_bench.comparison.series import Series
from mis_bench.measure import Call, one_call
from mis_bench.targets.base import Scores, Target
from mis_bench.workload import Workload


@dataclass(frozen=True, slots=True)
class InTurn:
    """What was found: timings by target and chunk size, every request, and each answer of every target."""

    series: list[Series]
    requests: list[Request]
    answers: dict[str, list[Scores]]


def measure_in_turn(
    targets: Mapping[str, Target],
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
            seconds, calls = _ask(targets[name], parts[name], size)
            replies = [call.reply.scores for call in calls if call.reply is not None]
            failed = next((call for call in calls if not call.ok), None)
            if failed is None:
                answers[name].append(np.concatenate(replies))
            requests.append(
                Request(
                    target=name,
                    chunk_items=size,
                    round=number,
                    seconds=seconds,
                    failure=None if failed is None else failed.failure,
                    message="" if failed is None else failed.message[:300],
                )
            )
            on_request(len(requests), len(entries) * (rounds + 1), name)
    return InTurn([_series(requests, *entry, parts[entry[0]].num_items) for entry in entries], requests, answers)


def _first(workload: Workload, items: int) -> Workload:
    return replace(workload, items=workload.items[:items])


def _sizes(chunk_sizes: Sequence[int], items: int) -> list[int]:
    """Return chunk sizes cut to the request, each once, rising; the whole request if there are none."""
    return sorted({min(size, items) for size in chunk_sizes or [items]})


def _ask(target: Target, workload: Workload, chunk_items: int) -> tuple[float, list[Call]]:
    """Ask chunk after chunk, up to the first failure; return the seconds of all together, and the calls."""
    target.forget()
    calls: list[Call] = []
    began = time.perf_counter()
    for start in range(0, workload.num_items, chunk_items):
        chunk = replace(workload, items=workload.items[start : start + chunk_items])
        calls.append(one_call(target, chunk, since=began))
        if not calls[-1].ok:
            break
    return time.perf_counter() - began, calls


def _series(requests: Sequence[Request], target: str, chunk_items: int, items: int) -> Series:
    mine = [each for each in requests if (each.target, each.chunk_items) == (target, chunk_items)]
    warm_up, timed = mine[0], mine[1:]
    return Series(
        target=target,
        chunk_items=chunk_items,
        items=items,
        seconds=tuple(None if each.failure else each.seconds for each in timed),
        failures=dict(Counter(each.failure for each in timed if each.failure)),
        first_seconds=None if warm_up.failure else warm_up.seconds,
    )
