"""Figures that were stored before, and what figures of today mean beside them."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.perf import Baseline, Conditions, Figures, PerfResult, Stored, StoredRow, Yardstick
from mis_bench.perf.errors import PerfError
from mis_bench.perf.rules import THROUGHPUT_DROP, stored_verdict

_SAME_MACHINE = {"p50_ms": 0.05, "p95_ms": 0.15}
"""Differences of the yardstick up to which the machine is in the state that it was in then."""


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one configuration, of whatever command.

    Attributes:
        name: Of the row.
        batch_size: Items of a call.
        num_labels: Labels of an item.
        model: Name or directory.
        dtype: Of the weights, if known.
        workload_sha256: Checksum of the request, if known.
        successful_runs: Answered calls.
        throughput_ips: Items a second.
        latency_p95_ms: If known.
        latency_p99_ms: If known.
        cpu_ms: CPU time of a call, where that tells neighbours from regressions.
    """

    name: str
    batch_size: int
    num_labels: int
    model: str
    dtype: str | None
    workload_sha256: str | None
    successful_runs: int
    throughput_ips: float
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    cpu_ms: float | None = None

    @property
    def key(self) -> tuple[str, int, int, str, str | None]:
        """What must be the same of two rows that are compared."""
        return self.name, self.batch_size, self.num_labels, Path(self.model).name, self.dtype

    def asks_what(self, other: "Row") -> bool:
        """Whether another row asked the same, as far as both tell."""
        return None in (self.workload_sha256, other.workload_sha256) or self.workload_sha256 == other.workload_sha256


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows of today beside stored ones.

    Attributes:
        rows: One for every stored row that has an answered call.
        common: How many of them were measured today.
        new: How many rows of today are not stored.
    """

    rows: list[StoredRow]
    common: int
    new: int


def compare_with_baseline(
    rows: Iterable[Row], baseline: Iterable[Row], *, threshold: float = THROUGHPUT_DROP
) -> Beside:
    """Compare figures of one measurement with stored ones, row by row, by the rules of `stored_verdict`.

    Args:
        rows: Of today; those without an answered call are not measured.
        baseline: Stored; a row's name, batch size, labels, model, dtype and request must be the same.
        threshold: Drop of throughput as a share.
    """
    now = {row.key: row for row in rows if row.successful_runs}
    then = [row for row in baseline if row.successful_runs]
    pairs = [(row, now.get(row.key)) for row in then]
    pairs = [(row, today if today is not None and today.asks_what(row) else None) for row, today in pairs]
    common = sum(today is not None for _, today in pairs)
    return Beside([_compared(today, row, threshold) for row, today in pairs], common, len(now) - common)


def baseline_of(result: PerfResult) -> Baseline:
    """Return what to store: the head's figures."""
    return Baseline(
        environment=result.environment,
        commit=result.head_commit,
        is_dirty=result.head_is_dirty,
        conditions=result.conditions,
        yardstick=result.yardstick,
        figures=[each.head for each in result.workloads],
    )


def file_of(hardware: str, folder: Path) -> Path:
    """Return the file for a machine's figures, `intel-xeon-processor-2-cores.json` for instance."""
    words = re.sub(r"\((r|tm)\)", " ", hardware.lower())
    return folder / ("-".join(re.findall(r"[a-z0-9.]+", words)) + ".json")


def beside(result: PerfResult, folder: Path) -> Stored | None:
    """Compare the head's figures with those stored for this hardware; None if there are none.

    Raises:
        ArtifactError: the file is no baseline.
    """
    path = file_of(result.conditions.hardware, folder)
    if not path.is_file():
        return None
    baseline = read_artifact(path)
    if not isinstance(baseline, Baseline):
        raise PerfError(f"{path} is a {baseline.schema_version}, not a baseline; make one with --update-baseline.")
    reasons = [*_conditions(baseline.conditions, result.conditions), *_machine(baseline.yardstick, result.yardstick)]
    on_cpu = result.conditions.platform == "cpu"
    found = compare_with_baseline(
        [_row(each.head, on_cpu=on_cpu) for each in result.workloads],
        [_row(each, on_cpu=on_cpu) for each in baseline.figures],
    )
    if found.new or found.common < len(found.rows):
        reasons.append("it has other workloads")
    return Stored(
        file=str(path),
        commit=baseline.commit,
        decides=not reasons,
        why_not="; ".join(reasons) or None,
        rows=found.rows,
    )


def _row(figures: Figures, *, on_cpu: bool) -> Row:
    fields = {field.name: getattr(figures, field.name) for field in dataclasses.fields(Row)}
    return Row(**fields | {"cpu_ms": figures.cpu_ms if on_cpu else None})


def _compared(now: Row | None, then: Row, threshold: float) -> StoredRow:
    changes = {
        name: None if now is None else _change(getattr(now, field), getattr(then, field))
        for name, field in (
            ("throughput", "throughput_ips"),
            ("p95", "latency_p95_ms"),
            ("p99", "latency_p99_ms"),
            ("cpu_time", "cpu_ms"),
        )
    }
    calls = 0 if now is None else min(now.successful_runs, then.successful_runs)
    status, reasons = stored_verdict(**changes, calls=calls, threshold=threshold)
    return StoredRow(name=then.name, status=status, reasons=reasons, **changes, calls=calls)


def _change(now: float | None, then: float | None) -> float | None:
    return None if now is None or not then else now / then - 1


def _conditions(then: Conditions, now: Conditions) -> Iterator[str]:
    for field in Conditions.model_fields:
        before, today = getattr(then, field), getattr(now, field)
        if before == today:
            continue
        if isinstance(before, dict):
            names = sorted(name for name in before | today if before.get(name) != today.get(name))
            yield "; ".join(f"{name} was {before.get(name)} and is {today.get(name)}" for name in names)
        else:
            yield f"{field} was {before} and is {today}"


def _machine(then: Yardstick, now: Yardstick) -> Iterator[str]:
    for field, most in _SAME_MACHINE.items():
        rise = getattr(now, field) / getattr(then, field) - 1
        if abs(rise) > most:
            yield f"the machine itself is in another state (yardstick {field.removesuffix('_ms')} {rise:+.0%})"
            return
