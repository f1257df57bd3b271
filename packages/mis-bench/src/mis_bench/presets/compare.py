"""`mis-bench compare` and `mis-bench matrix`: which target is best, and in calls of how many items."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from mis_bench.options import ABOVE_0, Decorator
from mis_bench.presets.bench import (
    POSITIVE,
    Bench,
    BenchOptions,
    by_target,
    finish,
    measuring_options,
    numbers,
    show,
    workload_option,
)
from mis_bench.results.plan import Cache, Case
from mis_bench.targets.spec import without_secrets

CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)
"""Items of a call that `matrix` tries."""


def chunk_sizes_option(default: str) -> Decorator:
    """Return what adds the option for the sizes of calls; `default` says what is done without it."""
    return click.option(
        "--chunk-sizes",
        callback=numbers(POSITIVE),
        metavar="N,...",
        show_default=default,
        help="Numbers of items per call, into which the client splits a request. Comma-separated.",
    )


max_abs_option = click.option(
    "--correctness-threshold-max-abs",
    "max_abs",
    type=ABOVE_0,
    default=0.02,
    help="Largest difference between softmaxes over labels at which scores count as correct.",
)
mean_abs_option = click.option(
    "--correctness-threshold-mean-abs",
    "mean_abs",
    type=ABOVE_0,
    default=0.01,
    help="Largest mean difference between softmaxes over labels at which scores count as correct.",
)


@click.command()
@workload_option
@click.option("--rounds", type=POSITIVE, default=6, help="Number of timed rounds. Six or more give an interval.")
@chunk_sizes_option("whole requests")
@click.option(
    "--slow-items",
    "slow",
    multiple=True,
    callback=by_target(POSITIVE),
    metavar="TARGET=N",
    show_default="none",
    help="Send only the first N items to a slow target. Repeatable.",
)
@click.option(
    "--reference", show_default="the first", help="Target that the others are compared with, for correctness and speed."
)
@click.option(
    "--guardrail-ratio",
    type=click.FloatRange(1),
    default=1.25,
    help="Limit of the 95th percentile of a winner's latency, as a multiple of the lowest one.",
)
@max_abs_option
@mean_abs_option
@measuring_options
def compare(
    workload_name: str,
    rounds: int,
    chunk_sizes: tuple[int, ...],
    slow: dict[str, int],
    reference: str | None,
    guardrail_ratio: float,
    max_abs: float,
    mean_abs: float,
    **given: Any,
) -> None:
    """Compare backends for correctness and speed.

    Backends are measured in alternating rounds. Among those whose scores are correct, the fastest wins.

    The exit status is 1 if scores differ too much, a target could not run, or no target is eligible.
    """
    options = BenchOptions(**given)
    if len(options.targets) < 2 or len(options.models) > 1:
        raise click.UsageError("Name at least two targets with --target, and one --model.")
    bench = options.find(must_forget=True)
    names = [target.name for target in bench.planned]
    reference = without_secrets(reference or next((name for name in names if name not in slow), names[0]))
    for name in (reference, *slow):
        if name not in names:
            raise click.UsageError(f"{name!r} is not a target; the targets are {', '.join(names)}.")
    if reference in slow:
        raise click.UsageError(f"{reference} scores few items, so it cannot be the --reference; name another.")
    notes = [f"{name} was asked for the first {items} items only." for name, items in slow.items()]
    cases = _cases(bench, workload_name, chunk_sizes, slow=slow)
    limits = {"guardrail_ratio": guardrail_ratio, "max_abs": max_abs, "mean_abs": mean_abs}
    found = bench.measure("compare", cases, rounds=rounds, notes=notes, reference=reference, limits=limits)
    finish(show(found))


@click.command()
@workload_option
@click.option(
    "--view",
    type=click.Choice(["portable", "best-native"]),
    default="portable",
    help="How the client sends a request: `portable` splits it into calls, `best-native` sends it whole.",
)
@chunk_sizes_option(f"{','.join(map(str, CHUNK_SIZES))}; whole requests in `best-native`")
@click.option(
    "--cache",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    help="State of the prefix cache. `warm` calls find their query in it, `cold` ones do not.",
)
@click.option("--sweep-runs", type=POSITIVE, default=5, help="Number of rounds in which every size is measured.")
@click.option(
    "--confirm-runs",
    type=click.IntRange(0),
    default=7,
    help="Number of rounds in which the winner is measured once more.",
)
@max_abs_option
@mean_abs_option
@measuring_options
def matrix(
    workload_name: str,
    view: str,
    chunk_sizes: tuple[int, ...],
    cache: Cache,
    sweep_runs: int,
    confirm_runs: int,
    max_abs: float,
    mean_abs: float,
    **given: Any,
) -> None:
    """Find the fastest target and items per call.

    In the view `portable` the client splits the request into calls, and every target is measured with several sizes of
    calls. In the view `best-native` the client sends the request whole. The winner, its neighbours in size and the
    smallest calls are then measured once more.

    The exit status is 1 if no row is eligible.
    """
    options = BenchOptions(**given)
    if len(options.models) > 1:
        raise click.UsageError("A matrix takes one --model.")
    bench = options.find(must_forget=cache == "cold")
    sizes = chunk_sizes or (() if view == "best-native" else CHUNK_SIZES)
    cases = _cases(bench, workload_name, sizes, cache=cache)
    reference = bench.planned[0].name
    limits = {"max_abs": max_abs, "mean_abs": mean_abs}
    found = bench.measure(
        "matrix", cases, rounds=sweep_runs, confirm_rounds=confirm_runs, reference=reference, limits=limits
    )
    finish(show(found))


def _cases(
    bench: Bench, workload_name: str, sizes: Sequence[int], *, slow: Mapping[str, int] = {}, cache: Cache = "cold"
) -> list[Case]:
    """Return a case for every target and size of its calls, all items by default; slow targets get the first few."""
    cases = []
    for target in bench.planned:
        part = bench.part(workload_name, softmax=True, items=slow.get(target.name))
        for size in sorted({min(size, part.num_items) for size in sizes or [part.num_items]}):
            is_whole = size == part.num_items
            cases.append(
                Case(
                    name=target.name if is_whole else f"{target.name}, calls of {size}",
                    target=target.name,
                    workload=part,
                    cache=cache,
                    chunk_items=0 if is_whole else size,
                    is_partial=target.name in slow,
                )
            )
    return cases
