"""Every fault of a folder: of each file, and of what its files say about each other."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from mis_bench.artifacts.matrix import MatrixChunk, RunMetadata, ScoreMatrix
from mis_bench.artifacts.parts import CallRecord, differs
from mis_bench.artifacts.run import RunResult, RunRow
from mis_bench.artifacts.trace import TraceResult
from mis_bench.checking.calls import read_calls, trace_faults
from mis_bench.checking.files import Checked, check_file, is_artifact
from mis_bench.matrix.folder import file_of
from mis_bench.matrix.mission import to_confirm
from mis_bench.runs import CSV_FIELDS, csv_row
from mis_bench.statistics import Latency

_SLACK_S = 1e-3
"""Between the clock of a call and that of its loop."""


def check_path(path: Path, *, below: bool = False) -> list[Checked]:
    """Check a file, or the artifacts in a folder.

    Args:
        path: A file, which is then checked by itself, or a folder.
        below: Look into the folders below as well.

    Returns:
        One for each file looked at; none if the folder has no artifacts.

    Raises:
        OSError: something cannot be read.
    """
    if path.is_file():
        return [check_file(path)]
    folders = sorted({file.parent for file in path.rglob("*.json")} | {path}) if below else [path]
    return [checked for folder in folders for checked in _folder(folder)]


def _folder(folder: Path) -> list[Checked]:
    files = [check_file(path) for path in sorted(folder.glob("*.json")) if is_artifact(path)]
    artifacts = {each.path: each.artifact for each in files}
    extra: dict[Path, list[str]] = {}
    for path, artifact in artifacts.items():
        if isinstance(artifact, RunResult):
            for name, fault in _run_faults(folder, artifact):
                extra.setdefault(folder / name, []).append(fault)
        elif isinstance(artifact, TraceResult):
            extra.setdefault(folder / "calls.jsonl", []).extend(trace_faults(folder, artifact))
        elif isinstance(artifact, ScoreMatrix):
            extra.setdefault(path, []).extend(_matrix_faults(folder, artifact, artifacts))
        elif isinstance(artifact, MatrixChunk):
            extra.setdefault(path, []).extend(_chunk_faults(folder, path, artifact, artifacts))
        elif isinstance(artifact, RunMetadata) and not (folder / "matrix_results.json").exists():
            extra.setdefault(path, []).append("the mission is not finished: matrix_results.json is missing")
    found = [
        Checked(each.path, each.schema, (*each.faults, *extra.pop(each.path, ())), each.artifact) for each in files
    ]
    return found + [Checked(path, None, tuple(faults)) for path, faults in extra.items()]


def _run_faults(folder: Path, run: RunResult) -> Iterator[tuple[str, str]]:
    """Yield file and fault: `run.csv` says what `run.json` says, and its figures are those of the calls."""
    try:
        with (folder / "run.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
        if lines != [list(CSV_FIELDS), *(csv_row(row) for row in run.rows)]:
            yield "run.csv", "differs from the rows of run.json"
    except FileNotFoundError:
        yield "run.csv", "is missing"
    except (ValueError, csv.Error) as error:
        yield "run.csv", f"cannot be read: {error}"
    calls, faults = read_calls(folder, [row.name for row in run.rows])
    yield from (("calls.jsonl", fault) for fault in faults)
    if calls is not None:
        for row in run.rows:
            yield from (("calls.jsonl", f"{row.name}: {fault}") for fault in _call_faults(row, calls[row.name], run))


def _call_faults(row: RunRow, calls: list[CallRecord], run: RunResult) -> Iterator[str]:
    for phase, count in (("warmup", row.warmup_runs), ("timed", row.num_runs)):
        numbers = [call.number for call in calls if call.phase == phase]
        if numbers != list(range(count)):
            yield f"the {phase} calls are not numbered from 0 to {count - 1}"
    timed = [call for call in calls if call.phase == "timed"]
    if row.num_runs and any(call.failure for call in calls if call.phase == "warmup"):
        yield "a warm-up failed, but calls were timed"
    failures = [call.failure for call in timed if call.failure is not None]
    if {reason: failures.count(reason) for reason in failures} != row.failure_reason_counts:
        yield "failures are not those of failure_reason_counts"
    latency = Latency.of([call.latency_ms for call in timed if call.failure is None])
    for field, value in (latency.model_dump() if latency else {}).items():
        if differs(getattr(row, f"latency_{field}"), value):
            yield f"latency_{field} is {getattr(row, f'latency_{field}')}, but the calls make it {value}"
    if any(call.began_s > row.seconds + _SLACK_S or call.began_s < 0 for call in timed):
        yield "a timed call began outside of the timed loop"
    # In an open loop latency counts from when a call was due, and calls overlap.
    if run.rate is None and sum(call.latency_ms for call in timed) / 1e3 > row.seconds * run.concurrency + _SLACK_S:
        yield f"the timed calls take longer than {run.concurrency} callers can in {row.seconds} s"
    last = next((call for call in reversed(calls) if call.phase == "warmup" and call.failure is None), None)
    ratio = last.latency_ms / latency.p50_ms if last and latency else None
    if differs(row.warmup_ratio, ratio):
        yield f"warmup_ratio is {row.warmup_ratio}, but the calls make it {ratio}"


def _matrix_faults(folder: Path, matrix: ScoreMatrix, artifacts: Mapping[Path, object]) -> Iterator[str]:
    """Yield where a matrix differs from the plan and from the files of its configurations."""
    metadata = artifacts.get(folder / "run_metadata.json")
    if isinstance(metadata, RunMetadata):
        plan = metadata.plan
        if [row.configuration for row in matrix.results] != plan.configurations:
            yield "results are not the configurations of run_metadata.json"
        for field, mine, planned in (
            ("run_id", matrix.run_id, metadata.run_id),
            ("evaluation_view", matrix.evaluation_view, plan.evaluation_view),
            ("workload", matrix.workload, plan.workload),
            ("environment.timestamp", matrix.environment.timestamp, metadata.environment.timestamp),
        ):
            if mine != planned:
                yield f"{field} is not that of run_metadata.json"
        yield from _count_faults(matrix, metadata)
    else:
        yield "run_metadata.json is missing or broken"
    wanted = to_confirm(matrix.results)
    if [row.configuration for row in matrix.confirm_results] != wanted:
        yield f"confirm_results are not of {', '.join(each.name for each in wanted) or 'nothing'}"
    for phase, rows in (("sweep", matrix.results), ("confirm", matrix.confirm_results)):
        for row in rows:
            path = file_of(folder, "sweep" if phase == "sweep" else "confirm", row.configuration)
            chunk = artifacts.get(path)
            if not isinstance(chunk, MatrixChunk):
                yield f"{path.name} is missing or broken"
            elif chunk.row != row:
                yield f"the {phase} row {row.configuration.name} differs from {path.name}"


def _count_faults(matrix: ScoreMatrix, metadata: RunMetadata) -> Iterator[str]:
    plan = metadata.plan
    for rows, runs in ((matrix.results, plan.sweep_runs), (matrix.confirm_results, plan.confirm_runs)):
        for row in rows:
            is_whole = row.status != "failed" and "timeout" not in row.failure_reason_counts
            warmups = len(row.run_records) - row.timed_runs
            if is_whole and (warmups, row.timed_runs) != (plan.warmup_runs, runs):
                name = row.configuration.name
                yield f"{name} has {warmups} warm-ups and {row.timed_runs} timed runs, unlike the plan"
            if row.mean_total_e2e_ms is not None and (row.usd_per_run is None) != (plan.hourly_cost is None):
                yield f"{row.configuration.name}: usd_per_run must be given exactly if the plan has an hourly_cost"
            elif row.usd_per_run is not None and plan.hourly_cost is not None and row.mean_total_e2e_ms is not None:
                cost = plan.hourly_cost * row.mean_total_e2e_ms / 3.6e6
                if abs(row.usd_per_run - cost) > 1e-6 * cost:
                    yield f"{row.configuration.name}: usd_per_run is {row.usd_per_run}, but the plan makes it {cost}"


def _chunk_faults(folder: Path, path: Path, chunk: MatrixChunk, artifacts: Mapping[Path, object]) -> Iterator[str]:
    if path != file_of(folder, chunk.phase, chunk.row.configuration):
        yield f"holds the {chunk.phase} of {chunk.row.configuration.name}"
    metadata = artifacts.get(folder / "run_metadata.json")
    if not isinstance(metadata, RunMetadata):
        return
    if chunk.run_id != metadata.run_id:
        yield "run_id is not that of run_metadata.json"
    if chunk.workload != metadata.plan.workload or chunk.evaluation_view != metadata.plan.evaluation_view:
        yield "workload or evaluation_view is not that of run_metadata.json"
    if chunk.environment.timestamp < metadata.environment.timestamp:
        yield "environment.timestamp is before the mission's"
    matrix = artifacts.get(folder / "matrix_results.json")
    if isinstance(matrix, ScoreMatrix):
        if chunk.finished > matrix.finished:
            yield "finished is after the matrix was written"
        rows = matrix.results if chunk.phase == "sweep" else matrix.confirm_results
        if chunk.row.configuration not in [row.configuration for row in rows]:
            yield "matrix_results.json has no such row"
