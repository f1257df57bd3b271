"""`mis-bench run` without its command line: every row of a profile, on every model and dtype."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from mis_bench.artifacts.parts import CallRecord, write_calls
from mis_bench.artifacts.run import RunResult, RunRow
from mis_bench.loads import Load
from mis_bench.measure import Call
from mis_bench.profiles import RunConfiguration
from mis_bench.rows import Counts, empty_row, measure_row
from mis_bench.targets.base import BlockingTarget
from mis_bench.workload import Workload

CSV_FIELDS = (
    "name", "cache", "batch_size", "num_labels", "model", "dtype", "num_runs", "warmup_runs", "successful_runs",
    "success_rate", "total_items", "seconds", "throughput_ips", "throughput_rps", "latency_p50_ms", "latency_p95_ms",
    "latency_p99_ms", "latency_mean_ms", "latency_std_ms", "warmup_ratio", "timed_compilations", "status", "reason",
)  # fmt: skip
"""Columns of `run.csv`: the fields of a row that are single values."""


def measure_rows(
    target: BlockingTarget,
    configurations: Sequence[RunConfiguration],
    build: Callable[[str], Workload],
    counts: Counts,
    *,
    suffix: str = "",
    on_call: Callable[[Call], None] = lambda _: None,
    on_row: Callable[[RunRow], None] = lambda _: None,
) -> tuple[list[RunRow], list[CallRecord]]:
    """Measure configurations one after the other on one target.

    A target that answers none of them has failed: it does not fit at all.

    Args:
        target: Whom.
        configurations: What.
        build: Makes a workload of its name.
        counts: How often.
        suffix: What is put behind the rows' names, to tell targets apart.
        on_call: Told of every finished call.
        on_row: Told of every finished row.
    """
    rows, records = [], []
    for configuration in configurations:
        load = Load(build(configuration.workload), configuration.cache)
        name = configuration.name + suffix
        if configuration.skip is None:
            row, calls = measure_row(target, name, load, counts, on_call)
            records += calls
        else:
            row = empty_row(target, name, load, status="skipped", reason=configuration.skip)
        rows.append(row)
        on_row(row)
    _doubt_slow_caches(rows)
    if not any(row.successful_runs for row in rows):
        for row in rows:
            row.status = "failed" if row.warmup_runs else row.status
    return rows, records


def _doubt_slow_caches(rows: Sequence[RunRow]) -> None:
    """Mark rows of kept queries that are surely slower than those of computed ones: something else was measured."""
    cold = {row.workload.sha256: row for row in rows if row.cache == "cold"}
    for row in rows:
        other = cold.get(row.workload.sha256) if row.cache == "warm" else None
        if other is None or row.throughput_interval is None or other.throughput_interval is None:
            continue
        if row.status != "failed" and row.throughput_interval.high < other.throughput_interval.low:
            doubt = f"slower than {other.name}, which computes the query"
            row.status, row.reason = "warn", doubt if row.reason is None else f"{row.reason}; {doubt}"


def write_run(folder: Path, result: RunResult, records: Sequence[CallRecord]) -> None:
    """Write `run.json`, `run.csv` and `calls.jsonl`.

    Raises:
        OSError: a file cannot be written.
    """
    write_calls(folder, records)
    with (folder / "run.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_FIELDS)
        writer.writerows(csv_row(row) for row in result.rows)
    result.write(folder / "run.json")


def csv_row(row: RunRow) -> list[str]:
    """Return a row's line of `run.csv`; an unknown value is empty."""
    values = (getattr(row, field) for field in CSV_FIELDS)
    return ["" if value is None else str(value) for value in values]
