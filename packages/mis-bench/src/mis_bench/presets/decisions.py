"""`mis-bench decisions speed`: how fast a server of System One answers questions about a state, new and known."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import click

from mis_bench.options import ABOVE_0
from mis_bench.presets.bench import POSITIVE, Bench, BenchOptions, by_target, finish, measuring_options, numbers, show
from mis_bench.presets.compare import max_abs_option, mean_abs_option
from mis_bench.results.plan import Case, LoadLevel, WorkloadPart
from mis_bench.targets.spec import without_secrets
from mis_bench.traces import build_trace


class DecisionLoad(NamedTuple):
    """Questions about a state, and how they are asked.

    Attributes:
        workload: The questions.
        is_known: Whether they are also asked of a state that the target knows, in one request and one by one.
        is_loaded: Whether many requests are also under way at once.
    """

    workload: str
    is_known: bool = False
    is_loaded: bool = False


LOADS = {
    "ticket": DecisionLoad("systemone-300-3-8", is_loaded=True),
    "document": DecisionLoad("systemone-3000-50-8", is_known=True),
    "options": DecisionLoad("systemone-300-1-8@255"),
    "long": DecisionLoad("systemone-32000-50-8", is_known=True),
}
"""A ticket of 300 words, a document of 3,000, a choice among 255 options, and 32,000 words."""

DEFAULT_LOADS = ("ticket", "document", "options")
"""Those that take minutes on a CPU."""

ROUNDS, SECONDS, CALLERS = 5, 12.0, "1,4,16,64"
"""Defaults: rounds of every case, and the length and the callers of loads with many requests under way."""

RECORDED_CALLERS = (1, 8)
"""Callers that send recorded requests."""


@click.group()
def decisions() -> None:
    """Measure decisions of System One.

    Decisions are questions with few answers about a state.
    """


@decisions.command()
@click.option(
    "--load",
    "names",
    type=click.Choice(list(LOADS)),
    multiple=True,
    default=DEFAULT_LOADS,
    help="Kind of states and questions. Repeatable.",
)
@click.option(
    "--requests",
    "file",
    type=click.Path(exists=True, dir_okay=False),
    show_default="none",
    help="File of recorded requests to send as well. Each line is JSON with `state` and `questions`.",
)
@click.option(
    "--rounds",
    type=POSITIVE,
    default=ROUNDS,
    help="Number of timed rounds of every case. Targets are measured in turn.",
)
@click.option(
    "--callers",
    callback=numbers(POSITIVE),
    default=CALLERS,
    metavar="N,...",
    help="Numbers of concurrent requests about tickets. Comma-separated. '' means no such loads.",
)
@click.option(
    "--seconds",
    type=ABOVE_0,
    default=SECONDS,
    help="Length of each load of concurrent requests in a round, in seconds.",
)
@click.option(
    "--slow-questions",
    "slow",
    multiple=True,
    callback=by_target(POSITIVE),
    metavar="TARGET=N",
    show_default="none",
    help="Ask a slow target at most N questions about a state. Repeatable.",
)
@max_abs_option
@mean_abs_option
@measuring_options
def speed(
    names: tuple[str, ...],
    file: str | None,
    rounds: int,
    callers: tuple[int, ...],
    seconds: float,
    slow: dict[str, int],
    max_abs: float,
    mean_abs: float,
    **given: Any,
) -> None:
    """Measure decisions per second.

    A state is new to the target, or known: an earlier request was about it. Questions about a known state are asked in
    three ways: all in one request, all one by one, and a single further question. In results, an item is a question.
    Other targets are compared, in answers and speed, with the first target that is asked all questions.

    The exit status is 1 if a request failed or answers differ too much. Rows that a target refuses are skipped.
    """
    options = BenchOptions(**given)
    if len(options.models) > 1:
        raise click.UsageError("Decisions are measured with one --model.")
    bench = options.find()
    targets = [target.name for target in bench.planned]
    if unknown := set(slow) - set(targets):
        raise click.UsageError(f"{min(unknown)!r} is not a target; the targets are {', '.join(targets)}.")
    loads = {name: LOADS[name] for name in names}
    cases = [*_cases(bench, loads, callers, seconds, slow), *(_recorded(bench, file) if file else ())]
    reference = next((name for name in targets if name not in slow), targets[0])
    notes = [f"{without_secrets(name)} was asked {most} questions of a state at most." for name, most in slow.items()]
    limits = {"max_abs": max_abs, "mean_abs": mean_abs}
    found = bench.measure("decisions", cases, rounds=rounds, notes=notes, reference=reference, limits=limits)
    finish(show(found))


def _cases(
    bench: Bench, loads: Mapping[str, DecisionLoad], callers: Sequence[int], seconds: float, slow: Mapping[str, int]
) -> Iterator[Case]:
    """Yield the cases of every load and target."""
    for (name, load), target in product(loads.items(), bench.planned):
        whole, first = (bench.part(load.workload, items=items) for items in (slow.get(target.name), 1))
        asked = f"{whole.num_items} question{'s' if whole.num_items > 1 else ''}"
        rows: dict[str, dict[str, Any]] = {f"{name}, {asked}": {}}
        if load.is_known:
            rows[f"{name} known, {asked}"] = {"cache": "warm"}
        if load.is_known and whole.num_items > 1:
            rows[f"{name} known, {asked} one by one"] = {"cache": "warm", "chunk_items": 1}
            rows[f"{name}, first question"] = {"workload": first}
            rows[f"{name} known, next question"] = {"workload": first, "cache": "warm"}
        for count in callers if load.is_loaded else ():
            level = LoadLevel(requests=None, seconds=seconds, max_concurrency=count)
            rows[f"{name}, {asked}, {count} under way"] = {"load": level, "is_gated": False}
        is_partial = whole.num_items < bench.part(load.workload).num_items
        for words, fields in rows.items():
            named = {"name": bench.named(words, target), "target": target.name, "workload": whole}
            yield Case.model_validate(named | fields | {"is_partial": is_partial and fields.get("workload") != first})


def _recorded(bench: Bench, file: str) -> Iterator[Case]:
    """Yield a case for every target and number of callers that send recorded requests."""
    trace = build_trace(f"systemone:{file}")
    for target in bench.planned:
        for count in RECORDED_CALLERS:
            yield Case(
                name=bench.named(f"recorded, {count} under way", target),
                target=target.name,
                workload=WorkloadPart.of_trace(trace),
                load=LoadLevel(requests=None, max_concurrency=count),
                is_gated=False,
            )
