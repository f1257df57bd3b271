"""A run beside an earlier one: rows of the same name, and whether one became slower.

A drop of items per second beyond the threshold is a regression, beyond half of it a warning; so is a rise of p95 by
more than 15 %, while one of p99 by more than 20 % warns. A percentile that no call lies beyond is only the slowest
call: p95 of fewer than 20 calls warns at most, and p99 of fewer than 100 is left out.
"""

from pathlib import Path

from mis_bench.artifact import ArtifactError
from mis_bench.figures import Row
from mis_bench.records import read_results
from mis_bench.summary import Summary, summarize
from mis_bench.table import Table

P95_RISE, P99_RISE = 0.15, 0.20
"""Rises of latency, as shares, that are a regression and a warning."""


def beside(summary: Summary, baseline: Path, threshold: float) -> tuple[Table, bool]:
    """Compare a run with the folder of an earlier one, row by row; one that was measured then only is a regression.

    Returns:
        The table, and whether a row is a regression (`verdict`) on the same hardware.

    Raises:
        ArtifactError: the folder holds no results, or those of other requests or loads.
    """
    then = [row for row in summarize(read_results(baseline)).rows if row.speed]
    now = {row.name: row for row in summary.rows}
    unlike = [row.name for row in then if row.name in now and now[row.name].conditions != row.conditions]
    if unlike or not any(row.name in now for row in then):
        raise ArtifactError(f"{baseline} was measured otherwise: {', '.join(unlike) or 'no row is in both'}.")
    verdicts = {row.name: verdict(row, now.get(row.name), threshold) for row in then}
    there = {row.hardware for row in then}
    decides = there == {row.hardware for row in summary.rows}
    why = "" if decides else f"; for information only, since it was taken on {', '.join(there)}"
    columns = {
        "row": lambda row: row.name,
        "items/s": lambda row: now[row.name].speed if row.name in now else 0.0,
        "baseline": lambda row: row.speed,
        "verdict": lambda row: verdicts[row.name],
    }
    is_slower = decides and any(each.startswith("failed") for each in verdicts.values())
    return Table.of(f"Against {baseline.name}{why}", then, columns), is_slower


def verdict(then: Row, now: Row | None, threshold: float) -> str:
    """Return `ok`, `warning` or `failed` and what changed; `threshold` is the drop that fails, as a share."""
    if now is None or not now.speed:
        return "failed: REGRESSION, not measured"
    failed, warned = [], []
    change = now.speed / then.speed - 1
    if change < -threshold / 2:
        (failed if change < -threshold else warned).append(f"items/s {change:+.1%}")
    if then.latency and now.latency:
        calls = min(then.calls, now.calls)
        p95, p99 = now.latency.p95_ms / then.latency.p95_ms - 1, now.latency.p99_ms / then.latency.p99_ms - 1
        if p95 > P95_RISE:
            (failed if calls >= 20 else warned).append(f"p95 {p95:+.0%} of {calls} calls")
        if p99 > P99_RISE and calls >= 100:
            warned.append(f"p99 {p99:+.0%} of {calls} calls")
    if failed:
        return f"failed: REGRESSION, {', '.join(failed + warned)}"
    return f"warning: {', '.join(warned)}" if warned else f"ok, items/s {change:+.1%}"
