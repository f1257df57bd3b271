"""Rows to compare with, from files that `run` wrote."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifacts.base import ArtifactError, read_artifact
from mis_bench.artifacts.perf import Baseline
from mis_bench.artifacts.run import RunResult
from mis_bench.perf.stored import Row

_OF_ITS_OWN = {"dtype", "devices", "cache_tokens"}
"""Options that rows name themselves, that the hardware decides, and that follow from the memory that is free."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Figures of a file.

    Attributes:
        rows: The figures.
        run: The whole run, or None of a CSV file, which does not tell under which conditions it was made.
    """

    rows: Sequence[Row]
    run: RunResult | None

    @property
    def hardware(self) -> str | None:
        """What they were taken on, if known."""
        return None if self.run is None else self.run.environment.hardware

    def unlike(self, run: RunResult) -> Iterator[str]:
        """Yield every condition under which another run was made otherwise, as far as both tell."""
        if self.run is None:
            return
        before, today = (
            {"backend": each.target.backend, "concurrency": each.concurrency, "rate": each.rate} | each.target.options
            for each in (self.run, run)
        )
        for name in sorted(before.keys() & today.keys() - _OF_ITS_OWN):
            if before[name] != today[name]:
                yield f"{name} was {before[name]} and is {today[name]}"


def rows_of(run: RunResult) -> list[Row]:
    """Return the figures of a run."""
    return [
        Row(
            name=row.name,
            batch_size=row.batch_size,
            num_labels=row.num_labels,
            model=row.model,
            dtype=row.dtype,
            workload_sha256=row.workload.sha256,
            successful_runs=row.successful_runs,
            throughput_ips=row.throughput_ips,
            latency_p95_ms=row.latency_p95_ms,
            latency_p99_ms=row.latency_p99_ms,
        )
        for row in run.rows
    ]


def read_rows(path: Path) -> StoredRows:
    """Read `run.json` or `run.csv`.

    Raises:
        ArtifactError: it is neither; names the file and the fault.
    """
    if path.suffix == ".csv":
        return StoredRows(_read_csv(path), None)
    found = read_artifact(path)
    if isinstance(found, RunResult):
        return StoredRows(rows_of(found), found)
    hint = "; `mis-bench perf` compares with those" if isinstance(found, Baseline) else ""
    raise ArtifactError(f"{path}: a baseline is a run.json or a run.csv, not a {found.schema_version}{hint}")


def _read_csv(path: Path) -> list[Row]:
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


def _csv_row(fields: dict[str, str]) -> Row:
    def number(name: str) -> float | None:
        return float(fields[name]) if fields[name] else None

    return Row(
        name=fields["name"],
        batch_size=int(fields["batch_size"]),
        num_labels=int(fields["num_labels"]),
        model=fields["model"],
        dtype=fields["dtype"] or None,
        workload_sha256=None,
        successful_runs=int(fields["successful_runs"]),
        throughput_ips=float(fields["throughput_ips"]),
        latency_p95_ms=number("latency_p95_ms"),
        latency_p99_ms=number("latency_p99_ms"),
    )
