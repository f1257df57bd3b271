"""`mis-bench run --trace`: which trace, what is written and shown."""

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mis_bench.commands.gates import fail_if_missed
from mis_bench.commands.measuring import (
    checkpoint,
    identity,
    new_folder,
    number,
    one_sentence,
    opened,
    present,
    progress,
    vocabulary,
)
from mis_bench.workload import WorkloadNameError
from mis_bench.workloads.traces import Trace, TraceError, build_trace

if TYPE_CHECKING:
    from mis_bench.artifacts.gates import Gates
    from mis_bench.artifacts.trace import TraceResult


def run_trace(
    name: str,
    model: str | None,
    spec: str,
    options: dict[str, str],
    *,
    vocab_size: int | None,
    hardware: str | None,
    timeout: float,
    output: Path | None,
    warmup_runs: int,
    gates: "Gates",
) -> None:
    """Measure a trace, write `trace.json` and `calls.jsonl`, and show the rows.

    Args:
        name: Of a load, or of a file.
        model: Checkpoint.
        spec: BlockingTarget.
        options: Of the target.
        vocab_size: Ids are folded into it, if given.
        hardware: What computes, where a server runs elsewhere.
        timeout: Seconds that a call may take.
        output: Folder.
        warmup_runs: Calls of every size before the trace.
        gates: Limits; status 1 if one is missed.
    """
    from mis_bench.artifacts.trace import TracePart, TraceResult
    from mis_bench.environment import environment, hardware_of
    from mis_bench.targets.base import CallFailed
    from mis_bench.traced import play, warm_ups, write_trace

    trace = _trace(name)
    where, began = environment(hardware), time.perf_counter()
    run_id = identity(where.timestamp, "trace")
    folder = new_folder(output, run_id, "trace.json")
    directory = checkpoint(model)
    vocab = vocabulary(directory, vocab_size)
    trace = trace if vocab is None else trace.within(vocab)
    warmups = warm_ups(trace, warmup_runs)
    with one_sentence(), opened(spec, directory, options, timeout) as target, progress() as bar:
        task = bar.add_task("calls", total=len(warmups) + len(trace.arrivals))
        try:
            played = play(target, trace, warmups, lambda _: bar.advance(task))
        except CallFailed as error:
            raise click.ClickException(str(error)) from None
        where.hardware = hardware_of(hardware, target.about, where.hardware)
        rows = played.rows
        result = TraceResult(
            environment=where,
            run_id=run_id,
            finished=datetime.datetime.now(datetime.UTC),
            target=target.about,
            trace=TracePart.of(trace, is_recorded=Path(name).is_file(), vocab_size=vocab),
            warmup_runs=len(played.warmups),
            forgot=played.forgot,
            timed_compilations=None if played.compilations is None else int(played.compilations),
            seconds=played.timed.seconds,
            total_runtime_seconds=time.perf_counter() - began,
            rows=rows,
            gates=gates,
            gates_missed=[miss for row in rows for miss in row.missed(gates)],
            success=False,
        )
        result.success = result.is_success
        write_trace(folder, result, played.records)
    present(_table(result), result, folder)
    if result.timed_compilations:
        click.echo(f"Not clean: {result.timed_compilations} compilations while the trace was played.", err=True)
    if not result.forgot:
        click.echo("Not clean: the target knows no way to forget queries of earlier runs.", err=True)
    fail_if_missed(result.gates_missed)
    if not result.success:
        raise SystemExit(1)


def _trace(name: str) -> Trace:
    try:
        return Trace.read(Path(name)) if Path(name).is_file() else build_trace(name)
    except TraceError as error:
        raise click.BadParameter(str(error), param_hint="--trace") from None
    except WorkloadNameError as error:
        raise click.BadParameter(f"{error} There is no file of that name either.", param_hint="--trace") from None


def _table(result: "TraceResult") -> Table:
    table = Table(title=f"{result.trace.name}, {result.run_id}, {result.seconds:.1f} s")
    table.add_column("row")
    for name in ("requests", "failed", "items/s", "requests/s", "p50 ms", "p95 ms", "p99 ms", "mean ms"):
        table.add_column(name, justify="right")
    table.add_column("failures")
    for row in result.rows:
        latency = row.latency
        latencies = (latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.mean_ms) if latency else (None,) * 4
        table.add_row(
            row.name, str(row.num_requests), str(row.num_requests - row.successful_requests),
            f"{row.throughput_ips:,.2f}", f"{row.throughput_rps:,.2f}",
            *map(number, latencies),
            ", ".join(f"{reason} {count}" for reason, count in row.failure_reason_counts.items()),
        )  # fmt: skip
    return table
