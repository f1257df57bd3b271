"""`mis-bench sweep`."""

import click

from mis_bench.commands.bench import ABOVE_0, Given, find_targets, measuring_options, numbers
from mis_bench.commands.carry_out import carry_out, finish
from mis_bench.commands.measuring import one_sentence
from mis_bench.presets import sweep_cases
from mis_bench.records import Cache
from mis_bench.workload import CANONICAL


@click.command()
@click.option("--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, or another name of a workload.")
@click.option(
    "--rates",
    callback=numbers(float, "1,2,4"),
    show_default="none",
    help="Open loads: requests a second, behind commas, arriving at random.",
)
@click.option(
    "--concurrencies",
    callback=numbers(int, "1,2,4"),
    show_default="1,2,4,8 without --rates",
    help="Closed loads: callers, behind commas, each waiting for its answer.",
)
@click.option(
    "--max-concurrency",
    type=click.IntRange(1),
    show_default="no limit",
    help="Most requests under way in an open load.",
)
@click.option("--requests", type=click.IntRange(1), default=20, help="Requests of a load in a round.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Six or more give an interval.")
@click.option("--cache", type=click.Choice(["cold", "warm"]), default="cold", help="warm: requests share their query.")
@click.option("--slo-p99-ms", type=ABOVE_0, show_default="none", help="Objective: goodput is what keeps to it.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the times of arrival.")
@measuring_options
def sweep(
    given: Given,
    workload_name: str,
    rates: tuple[float, ...],
    concurrencies: tuple[int, ...],
    max_concurrency: int | None,
    requests: int,
    rounds: int,
    cache: Cache,
    slo_p99_ms: float | None,
    seed: int,
) -> None:
    """Sweep rates and concurrencies: one throughput-latency plot, and goodput under an objective.

    Latency counts from when a request was due. Writes report.html beside the results.
    """  # fmt: skip
    from mis_bench.report import write_report

    if 0 in (*rates, *concurrencies):
        raise click.UsageError("Rates and concurrencies must be above 0.")
    bench = find_targets(given)
    with one_sentence():
        cases = list(
            sweep_cases(
                bench.targets,
                workload_name,
                bench.common_vocabulary,
                rates=rates,
                concurrencies=concurrencies or (() if rates else (1, 2, 4, 8)),
                max_concurrency=max_concurrency,
                requests=requests,
                cache=cache,
            )
        )
    reference = bench.targets[0].name if len(bench.targets) > 1 else None
    outcome = carry_out(bench, "sweep", cases, rounds=rounds, reference=reference, slo_p99_ms=slo_p99_ms, seed=seed)
    page = outcome.folder / "report.html"
    write_report([outcome.folder], page)
    click.echo(f"Plot: {page}", err=True)
    finish(outcome.summary)
