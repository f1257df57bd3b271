"""Figures that were stored before, and what figures of today mean beside them."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.perf import Baseline, Conditions, PerfResult, Stored, StoredRow, Yardstick
from mis_bench.perf.errors import PerfError
from mis_bench.perf.judge import P95_RISE, P99_RISE, THROUGHPUT_DROP

_SAME_MACHINE = {"p50_ms": 0.05, "p95_ms": 0.15}
"""Differences of the yardstick up to which the machine is in the state that it was in then."""


class Row(Protocol):
    """Figures of one configuration, as `run` and `perf` have them."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def num_labels(self) -> int: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str | None: ...  # noqa: D102
    @property
    def successful_runs(self) -> int: ...  # noqa: D102
    @property
    def throughput_ips(self) -> float: ...  # noqa: D102
    @property
    def latency_p95_ms(self) -> float | None: ...  # noqa: D102
    @property
    def latency_p99_ms(self) -> float | None: ...  # noqa: D102


def compare_with_baseline(
    rows: Iterable[Row], baseline: Iterable[Row], *, threshold: float = THROUGHPUT_DROP
) -> list[StoredRow]:
    """Compare figures of one measurement with stored ones, row by row.

    A drop of throughput beyond `threshold` is a REGRESSION and beyond half of it a WARN; a rise of p95 beyond
    `P95_RISE` is a REGRESSION, of p99 beyond `P99_RISE` a WARN. A percentile that no call lies beyond is the slowest
    call: p95 of fewer than 20 calls warns at most, and p99 of fewer than 100 is left out.

    Args:
        rows: Of today; those without an answered call are left out.
        baseline: Stored; a row's name, batch size, labels, model and dtype must be the same.
        threshold: Drop of throughput as a share.
    """
    stored = {_key(row): row for row in baseline}
    return [
        _compared(row, stored[_key(row)], threshold)
        for row in rows
        if row.successful_runs and _key(row) in stored and stored[_key(row)].successful_runs
    ]


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
    now = {each.name: each.head for each in result.workloads}
    then = {each.name: each for each in baseline.figures}
    rows = compare_with_baseline(
        [each for name, each in now.items() if name in then and each.workload_sha256 == then[name].workload_sha256],
        baseline.figures,
    )
    if len(rows) < len(now):
        reasons.append("it has other workloads")
    if result.conditions.platform == "cpu":
        rows = [_confirmed(row, now[row.name].cpu_ms / then[row.name].cpu_ms - 1) for row in rows]
    return Stored(
        file=str(path),
        commit=baseline.commit,
        decides=not reasons,
        why_not="; ".join(reasons) or None,
        rows=rows,
    )


def _key(row: Row) -> tuple[str, int, int, str, str | None]:
    return row.name, row.batch_size, row.num_labels, Path(row.model).name, row.dtype


def _compared(now: Row, then: Row, threshold: float) -> StoredRow:
    throughput = now.throughput_ips / then.throughput_ips - 1
    p95, p99 = (_rise(getattr(now, name), getattr(then, name)) for name in ("latency_p95_ms", "latency_p99_ms"))
    calls = min(now.successful_runs, then.successful_runs)
    regressions, warnings = [], []
    if throughput < -threshold / 2:
        (regressions if throughput < -threshold else warnings).append(f"{throughput:+.1%} items/s")
    if p95 is not None and p95 > P95_RISE:
        is_enough = _beyond(calls, 95)
        (regressions if is_enough else warnings).append(
            f"p95 {p95:+.0%}{'' if is_enough else f' of only {calls} calls'}"
        )
    if p99 is not None and p99 > P99_RISE and _beyond(calls, 99):
        warnings.append(f"p99 {p99:+.0%}")
    return StoredRow(
        name=now.name,
        status="REGRESSION" if regressions else "WARN" if warnings else "OK",
        reasons=regressions + warnings,
        throughput=throughput,
        p95=p95,
        p99=p99,
    )


def _rise(now: float | None, then: float | None) -> float | None:
    return None if now is None or not then else now / then - 1


def _beyond(calls: int, percentile: float) -> bool:
    return calls * (100 - percentile) >= 100


def _confirmed(row: StoredRow, cpu_rise: float) -> StoredRow:
    """Turn a regression into a warning if the CPU time of a call did not rise with it: then neighbours made it."""
    if row.status != "REGRESSION" or cpu_rise >= THROUGHPUT_DROP / 2:
        return row
    reasons = [*row.reasons, f"but CPU time {cpu_rise:+.1%}"]
    return row.model_copy(update={"status": "WARN", "reasons": reasons})


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
