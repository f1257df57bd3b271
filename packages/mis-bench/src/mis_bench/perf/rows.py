"""Rows to compare with, from files that `run` or `perf` wrote."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifacts.base import ArtifactError, read_artifact
from mis_bench.artifacts.perf import Baseline
from mis_bench.artifacts.run import RunResult
from mis_bench.perf.stored import Row


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Figures of a file, and the hardware that they were taken on, which a CSV file does not tell."""

    rows: Sequence[Row]
    hardware: str | None


@dataclass(frozen=True, slots=True)
class CsvRow:
    """The columns of `run.csv` that are compared."""

    name: str
    batch_size: int
    num_labels: int
    model: str
    dtype: str | None
    successful_runs: int
    throughput_ips: float
    latency_p95_ms: float | None
    latency_p99_ms: float | None


def read_rows(path: Path) -> StoredRows:
    """Read `run.json`, `run.csv` or a baseline of `perf`.

    Raises:
        ArtifactError: it is none of these; names the file and the fault.
    """
    if path.suffix == ".csv":
        return StoredRows(_read_csv(path), None)
    found = read_artifact(path)
    if isinstance(found, RunResult):
        return StoredRows(found.rows, found.environment.hardware)
    if isinstance(found, Baseline):
        return StoredRows(found.figures, found.conditions.hardware)
    raise ArtifactError(
        f"{path}: a baseline is a run.json, a run.csv or a {Baseline.SCHEMA}, not {found.schema_version}"
    )


def _read_csv(path: Path) -> list[CsvRow]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_csv_row(fields) for fields in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    except KeyError as error:
        raise ArtifactError(
            f"{path}: there is no column {error.args[0]}; a baseline has the columns of run.csv"
        ) from None
    except ValueError as error:
        raise ArtifactError(f"{path}: {error}") from None


def _csv_row(fields: dict[str, str]) -> CsvRow:
    def number(name: str) -> float | None:
        return float(fields[name]) if fields[name] else None

    return CsvRow(
        name=fields["name"],
        batch_size=int(fields["batch_size"]),
        num_labels=int(fields["num_labels"]),
        model=fields["model"],
        dtype=fields["dtype"] or None,
        successful_runs=int(fields["successful_runs"]),
        throughput_ips=float(fields["throughput_ips"]),
        latency_p95_ms=number("latency_p95_ms"),
        latency_p99_ms=number("latency_p99_ms"),
    )
