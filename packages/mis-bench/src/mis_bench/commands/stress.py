"""`mis-bench stress`."""

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mis_bench.commands.measuring import (
    built,
    checkpoint,
    identity,
    new_folder,
    number,
    one_sentence,
    opened,
    present,
    progress,
    target_options,
    vocabulary,
)

if TYPE_CHECKING:
    from mis_bench.artifacts.stress import StressResult

_SCENARIOS = ("large-batch", "concurrent", "sustained")


@click.command()
@click.option(
    "--scenario",
    "scenarios",
    type=click.Choice(_SCENARIOS),
    multiple=True,
    show_default="all",
    help="large-batch: 50, 100 and 200 items. concurrent: 4, 8 and 16 callers. sustained: a load that lasts.",
)
@click.option("--model", help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR.")
@target_options
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    show_default="30, sustained 300",
    help="How long each concurrent and sustained load lasts.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=10.0, help="Requests a second of the sustained load."
)
def stress(
    scenarios: tuple[str, ...],
    model: str | None,
    spec: str,
    options: dict[str, str],
    vocab_size: int | None,
    hardware: str | None,
    timeout: float,
    output: Path | None,
    seconds: float | None,
    rate: float,
) -> None:
    """Put a target under loads that it must survive.

    Writes stress.json. Exit status 1 if a request failed, but for running out of memory with 200 items, or if the
    target answers no more afterwards.
    """  # fmt: skip
    from mis_bench.artifacts.stress import StressResult
    from mis_bench.environment import environment, hardware_of
    from mis_bench.stress import stress_configurations, stress_one

    where, began = environment(hardware), time.perf_counter()
    run_id = identity(where.timestamp, "stress")
    folder = new_folder(output, run_id, "stress.json")
    directory = checkpoint(model)
    vocab = vocabulary(directory, vocab_size)
    with one_sentence(), opened(spec, directory, options, timeout) as target, progress() as bar:
        configurations = [
            each
            for scenario in dict.fromkeys(scenarios or _SCENARIOS)
            for each in stress_configurations(scenario, seconds, rate)
        ]
        task = bar.add_task("seconds", total=sum(each.seconds for each in configurations))
        results, passed = [], 0.0
        for each in configurations:
            bar.update(task, description=each.name)
            results.append(
                stress_one(
                    target,
                    each,
                    lambda name: built(name, vocab),
                    # A load of a number of requests has no time to be measured against.
                    lambda call, each=each, passed=passed: bar.update(
                        task, completed=passed + min(call.began_s, each.seconds)
                    ),
                )
            )
            passed += each.seconds
        where.hardware = hardware_of(hardware, target.about, where.hardware)
        result = StressResult(
            environment=where,
            run_id=run_id,
            finished=datetime.datetime.now(datetime.UTC),
            target=target.about,
            total_runtime_seconds=time.perf_counter() - began,
            success=all(each.success for each in results),
            results=results,
        )
        result.write(folder / "stress.json")
    present(_table(result), result, folder)
    if not result.success:
        raise SystemExit(1)


def _table(result: "StressResult") -> Table:
    table = Table(title=f"stress, {result.run_id}")
    table.add_column("load")
    for name in ("requests", "failed", "requests/s", "items/s", "p50 ms", "mean ms", "p99 ms", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("result")
    for each in result.results:
        latencies = (each.latency_p50_ms, each.latency_mean_ms, each.latency_p99_ms)
        verdict = "ok" if each.success else "failed"
        why = each.errors[0] if each.errors else "" if each.answers_afterwards else "no answer afterwards"
        table.add_row(
            each.name, str(each.total_requests), str(each.failed_requests),
            f"{each.throughput_rps:,.2f}", f"{each.throughput_ips:,.1f}",
            *map(number, latencies), f"{each.duration_seconds:.1f}",
            f"{verdict}: {why}" if why else verdict,
        )  # fmt: skip
    return table
