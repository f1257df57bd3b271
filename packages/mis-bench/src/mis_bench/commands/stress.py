"""`mis-bench stress`."""

import click

from mis_bench.commands.bench import ABOVE_0, Given, find_targets, measuring_options
from mis_bench.commands.carry_out import carry_out, finish
from mis_bench.presets import SCENARIOS, stress_cases


@click.command()
@click.option(
    "--scenario",
    "scenarios",
    type=click.Choice(SCENARIOS),
    multiple=True,
    show_default="all",
    help="large-batch: 50, 100 and 200 items. concurrent: 4, 8 and 16 callers. sustained: a load that lasts.",
)
@click.option(
    "--seconds",
    type=ABOVE_0,
    show_default="30, sustained 300",
    help="How long each concurrent and sustained load lasts.",
)
@click.option("--rate", type=ABOVE_0, default=10.0, help="Requests a second of the sustained load.")
@measuring_options
def stress(given: Given, scenarios: tuple[str, ...], seconds: float | None, rate: float) -> None:
    """Put a target under loads that it must survive.

    Exit status 1 if a request failed, but for running out of memory with 200 items, or if the target answers no more
    afterwards.
    """  # fmt: skip
    bench = find_targets(given)
    cases = []
    for target in bench.targets:
        found = stress_cases(target, scenarios or SCENARIOS, seconds, rate, bench.vocabulary(target))
        several = len(bench.targets) > 1
        cases += [case.model_copy(update={"name": f"{case.name}-{target.name}"}) if several else case for case in found]
    finish(carry_out(bench, "stress", cases, rounds=1).summary)
