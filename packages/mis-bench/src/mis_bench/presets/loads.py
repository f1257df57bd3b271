"""`mis-bench stress` and `mis-bench sweep`: loads that must be survived, and throughput against latency."""

from typing import Any

import click

from mis_bench.options import ABOVE_0
from mis_bench.presets.bench import (
    POSITIVE,
    BenchOptions,
    finish,
    measuring_options,
    numbers,
    show,
    workload_option,
)
from mis_bench.results.plan import Cache, Case, LoadLevel

SCENARIOS = ("large-batch", "concurrent", "sustained")
PAGE = "report.html"
"""The plot of a sweep, beside its results."""

SUSTAINED_RATE = 10.0
"""Requests a second of the sustained load."""


@click.command()
@click.option(
    "--scenario",
    "scenarios",
    type=click.Choice(SCENARIOS),
    multiple=True,
    show_default="all",
    help="Scenario to run. Repeatable.",
)
@click.option(
    "--seconds", type=ABOVE_0, show_default="300 for `sustained`, else 30", help="Length of each load in seconds."
)
@measuring_options
def stress(scenarios: tuple[str, ...], seconds: float | None, **given: Any) -> None:
    """Put a target under loads that it must survive.

    The scenario `large-batch` sends requests of 50, 100 and 200 items. `concurrent` has 4, 8 and 16 callers.
    `sustained` sends 10 requests a second, of 16 items each. Sequences have at most 128 tokens, and items have 4
    labels.

    The exit status is 1 if a request failed, or if the target does not answer afterwards. Only requests of 200 items
    may run out of memory.
    """
    bench = BenchOptions(**given).find()
    short = LoadLevel(requests=None, seconds=seconds or 30.0)
    long = LoadLevel(requests=None, seconds=seconds or 300.0, max_concurrency=None, rate=SUSTAINED_RATE)
    loads = {
        "large-batch": [(f"{items}", items, LoadLevel(requests=5)) for items in (50, 100, 200)],
        "concurrent": [
            (f"{callers}x{items}", items, short.model_copy(update={"max_concurrency": callers}))
            for callers, items in ((4, 8), (8, 8), (16, 4))
        ],
        "sustained": [("16", 16, long)],
    }
    cases = [
        Case(
            name=bench.named(f"{scenario}-{sizes}", target),
            target=target.name,
            workload=bench.part(f"stress-100-{items}-20@4"),
            load=load,
            is_gated=False,
            must_survive=True,
            tolerated=["out_of_memory"] if items == 200 else [],
        )
        for target in bench.planned
        for scenario in dict.fromkeys(scenarios or SCENARIOS)
        for sizes, items, load in loads[scenario]
    ]
    finish(show(bench.measure("stress", cases, rounds=1)))


@click.command()
@workload_option
@click.option(
    "--rates",
    callback=numbers(ABOVE_0),
    metavar="X,...",
    show_default="none",
    help="Rates of open loads, in requests a second. Requests are sent at random times. Comma-separated.",
)
@click.option(
    "--concurrencies",
    callback=numbers(POSITIVE),
    metavar="N,...",
    show_default="1,2,4,8, or none with --rates",
    help="Numbers of callers of closed loads. Each caller waits for its answer. Comma-separated.",
)
@click.option(
    "--max-concurrency", type=POSITIVE, show_default="no limit", help="Maximum requests under way in an open load."
)
@click.option("--requests", type=POSITIVE, default=20, help="Number of requests of each load in a round.")
@click.option("--rounds", type=POSITIVE, default=3, help="Number of timed rounds. Six or more give an interval.")
@click.option(
    "--cache",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    help="State of the prefix cache. `warm` requests find their query in it, `cold` ones do not.",
)
@click.option(
    "--slo-p99-ms",
    type=ABOVE_0,
    show_default="none",
    help="Objective for latency, in ms. Goodput counts the requests that meet it.",
)
@measuring_options
def sweep(
    workload_name: str,
    rates: tuple[float, ...],
    concurrencies: tuple[int, ...],
    max_concurrency: int | None,
    requests: int,
    rounds: int,
    cache: Cache,
    slo_p99_ms: float | None,
    **given: Any,
) -> None:
    """Sweep rates and concurrencies.

    The command plots throughput against latency. With --slo-p99-ms it also computes goodput. Latency is counted from
    the time at which a request was due. The plot is in report.html, next to the results.
    """
    from mis_bench.report.writing import write_report

    bench = BenchOptions(**given).find()
    callers = concurrencies or (() if rates else (1, 2, 4, 8))
    loads = {f"x{each}": LoadLevel(requests=max(requests, each), max_concurrency=each) for each in callers}
    loads |= {f"{rate:g}/s": LoadLevel(requests=requests, max_concurrency=max_concurrency, rate=rate) for rate in rates}
    planned, part = bench.planned, bench.part(workload_name)
    cases = [
        Case(
            name=f"{target.name} {name}",
            target=target.name,
            workload=part,
            load=load,
            cache=cache,
            warmups=load.max_concurrency or 1,
            is_gated=load is next(iter(loads.values())),  # scores are checked under the first load of each target
        )
        for target in planned
        for name, load in loads.items()
    ]
    reference = planned[0].name if len(planned) > 1 else None
    fields = {"reference": reference, "slo_p99_ms": slo_p99_ms}
    found = show(bench.measure("sweep", cases, rounds=rounds, derived=(PAGE,), **fields))
    page = found.folder / PAGE
    write_report([found.folder], page)
    click.echo(f"Plot: {page}", err=True)
    finish(found)
