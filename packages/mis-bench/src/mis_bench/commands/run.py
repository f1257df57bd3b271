"""`mis-bench run`."""

import datetime
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mis_bench.commands.gates import fail_if_missed, gate_options
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
from mis_bench.commands.trace import run_trace
from mis_bench.profiles import PROFILES, Profile, RunConfiguration, configurations, named, parameter_count

if TYPE_CHECKING:
    from mis_bench.artifacts.parts import CallRecord
    from mis_bench.artifacts.run import RunResult, RunRow


@click.command()
@click.option(
    "--profile",
    "profile_name",
    type=click.Choice(list(PROFILES)),
    show_default="standard, or none with --workload",
    help="Sizes of requests, labels, and how often each is asked.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR; repeatable, one after the other.",
)
@target_options
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    help="Add a workload by name, with a cold and with a warm cache; repeatable.",
)
@click.option(
    "--trace",
    "trace_name",
    metavar="NAME|FILE",
    show_default="none",
    help="Measure a load instead: LOAD:RATE:COUNT[:SEED] as for the command workload, mixed:4:100 for instance, or a "
    "recorded one.",
)
@click.option("--runs", type=click.IntRange(1), show_default="the profile's", help="Timed calls of a row.")
@click.option(
    "--warmup-runs", type=click.IntRange(1), show_default="the profile's", help="Calls before them, at least."
)
@click.option("--concurrency", type=click.IntRange(1), default=1, help="Callers, each waiting for its answer.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    show_default="off",
    help="Send calls at random times instead, this many a second, without waiting for answers.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of those times.")
@gate_options
def run(
    profile_name: str | None,
    models: tuple[str, ...],
    spec: str,
    options: dict[str, str],
    vocab_size: int | None,
    hardware: str | None,
    timeout: float,
    output: Path | None,
    workloads: tuple[str, ...],
    trace_name: str | None,
    runs: int | None,
    warmup_runs: int | None,
    concurrency: int,
    rate: float | None,
    seed: int,
    **limits: float | None,
) -> None:
    """Measure throughput and latency for the sizes of a profile, for named workloads, or for a trace.

    Writes run.json, run.csv and calls.jsonl; for a trace trace.json and calls.jsonl. Exit status 1 if a call failed or
    a row missed a limit.
    """  # fmt: skip
    from mis_bench.artifacts.gates import Gates
    from mis_bench.artifacts.run import RunResult
    from mis_bench.environment import environment, hardware_of
    from mis_bench.rows import Counts
    from mis_bench.runs import measure_rows, write_run

    gates = Gates(**limits)
    if trace_name is not None:
        if profile_name or workloads or runs or concurrency > 1 or rate or seed:
            raise click.UsageError(
                "--trace says what is asked and when; it goes without --profile, --workload, --runs, --concurrency, "
                "--rate and --seed."
            )
        if len(models) > 1:
            raise click.UsageError("--trace is measured on one target; give one --model.")
        run_trace(
            trace_name, models[0] if models else None, spec, options, vocab_size=vocab_size, hardware=hardware,
            timeout=timeout, output=output, warmup_runs=warmup_runs or PROFILES["standard"].warmup_runs, gates=gates,
        )  # fmt: skip
        return
    profile = PROFILES[profile_name or "standard"]
    has_profile = profile_name is not None or not workloads
    counts = Counts(runs or profile.runs, warmup_runs or profile.warmup_runs, concurrency, rate, seed)
    if rate is not None and concurrency > 1:
        raise click.UsageError("--rate sends without waiting, so it has no --concurrency; give one of the two.")
    if concurrency > min(counts.runs, counts.warmup_runs):
        raise click.UsageError(f"--concurrency {concurrency} needs at least as many --runs and --warmup-runs.")
    for name in workloads:
        built(name, None)
    where, began = environment(hardware), time.perf_counter()
    run_id = identity(where.timestamp, profile.name if has_profile else "workloads")
    folder = new_folder(output, run_id, "run.json")
    rows: list[RunRow] = []
    records: list[CallRecord] = []
    abouts = []
    with one_sentence(), ExitStack() as stack:
        bar = stack.enter_context(progress())
        task = bar.add_task("calls", total=None)
        # Only our own engine lets a profile choose the type of weights, unless the user already did.
        dtypes = profile.dtypes if has_profile and spec == "engine" and "dtype" not in options else (None,)
        groups = [(checkpoint(model), dtype) for model in models or (None,) for dtype in dtypes]
        for model, dtype in groups:
            with opened(spec, model, options | ({"dtype": dtype} if dtype else {}), timeout) as target:
                abouts.append(target.about)
                chosen = _chosen(profile if has_profile else None, workloads, target.about.dtype, model)
                calls = (counts.runs + counts.warmup_runs) * sum(each.skip is None for each in chosen)
                bar.update(task, total=(bar.tasks[task].total or 0) + calls)
                vocab = vocabulary(model, vocab_size)
                found, called = measure_rows(
                    target,
                    chosen,
                    lambda name, vocab=vocab: built(name, vocab),
                    counts,
                    suffix=f"-{Path(target.about.model).name}-{target.about.dtype}" if len(groups) > 1 else "",
                    on_call=lambda _: bar.advance(task),
                    on_row=lambda row: bar.console.print(_line(row), markup=False, highlight=False),
                )
                rows += found
                records += called
        where.hardware = hardware_of(hardware, abouts[0], where.hardware)
        result = RunResult(
            environment=where,
            run_id=run_id,
            finished=datetime.datetime.now(datetime.UTC),
            profile=profile.name if has_profile else "workloads",
            target=abouts[0],
            tp_size=int(abouts[0].options.get("tp_size") or 1),
            concurrency=concurrency,
            rate=rate,
            seed=seed,
            total_configurations=len(rows),
            total_runtime_seconds=time.perf_counter() - began,
            rows=rows,
            gates=gates,
            gates_missed=[miss for row in rows for miss in row.missed(gates)],
        )
        write_run(folder, result, records)
    present(_table(result), result, folder)
    fail_if_missed(result.gates_missed)
    if any(row.status == "failed" for row in rows):
        raise SystemExit(1)


def _chosen(
    profile: Profile | None, workloads: tuple[str, ...], dtype: str | None, model: Path | None
) -> list[RunConfiguration]:
    parameters = None if model is None else parameter_count(model)
    rows = [] if profile is None else list(configurations(profile, dtype=dtype, parameters=parameters))
    return rows + list(named(workloads))


def _line(row: "RunRow") -> str:
    return (
        f"{row.name}: {row.throughput_ips:.1f} items/s" if row.num_runs else f"{row.name}: {row.status}, {row.reason}"
    )


def _table(result: "RunResult") -> Table:
    table = Table(title=f"{result.profile}, {result.run_id}")
    for name in ("row", "cache", "items", "labels", "dtype", "runs"):
        table.add_column(name)
    for name in ("items/s", "spread", "requests/s", "p50 ms", "p95 ms", "p99 ms", "mean ms", "std ms"):
        table.add_column(name, justify="right")
    table.add_column("status")
    for row in result.rows:
        interval = row.throughput_interval
        table.add_row(
            row.name, row.cache, str(row.batch_size), str(row.num_labels), row.dtype or "", str(row.num_runs),
            number(row.throughput_ips if row.num_runs else None),
            f"{interval.low:.1f} to {interval.high:.1f} ({interval.kind})" if interval else "",
            number(row.throughput_rps if row.num_runs else None),
            *(number(getattr(row, f"latency_{each}_ms")) for each in ("p50", "p95", "p99", "mean", "std")),
            row.status if row.reason is None else f"{row.status}: {row.reason}",
        )  # fmt: skip
    return table
