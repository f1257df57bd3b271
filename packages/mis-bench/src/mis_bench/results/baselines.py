"""A run beside an earlier one: rows of the same name, and whether one became slower.

A drop of items per second beyond the threshold is a regression, beyond half of it a warning; so is a rise of p95 by
more than 15 %, while one of p99 by more than 20 % warns. A percentile that no call lies beyond is only the slowest
call: p95 of fewer than 20 calls of a row warns at most, and p99 of fewer than 100 is left out.

So that profiles of a few calls have tails, too, the calls of all rows of a target are judged together. Each counts as a
share of the median that its row had in the baseline, so that rows of large requests do not hide those of small ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mis_bench.artifact import ArtifactError
from mis_bench.results.figures import Row
from mis_bench.results.records import Results
from mis_bench.results.summary import Measured
from mis_bench.table import Cell, Table

P95_RISE, P99_RISE = 0.15, 0.20
"""Rises of latency, as shares, that are a regression and a warning."""

P95_CALLS, P99_CALLS = 20, 100
"""Calls that these need: one of them lies beyond."""


class Tail(NamedTuple):
    """The slowest calls of all rows of a target, as shares of their rows' medians in the baseline."""

    calls: int
    p95: float
    p99: float


def beside(measured: Measured, baseline: Path, threshold: float) -> tuple[Table, bool]:
    """Compare a run with an earlier one.

    A row that was measured then only is a regression.

    Returns:
        The table, and whether a row (`verdict`) or a target's tail (`tail_verdict`) is a regression on the same
        hardware.

    Raises:
        ArtifactError: the earlier folder holds no results, or those of other requests or loads.
    """
    earlier = Measured.read(baseline)
    now = {row.name: row for row in measured.summary.rows}
    then = [row for row in earlier.summary.rows if row.speed]
    unlike = [row.name for row in then if row.name in now and now[row.name].conditions != row.conditions]
    if unlike or not any(row.name in now for row in then):
        raise ArtifactError(f"{baseline} was measured otherwise: {', '.join(unlike) or 'no row is in both'}.")
    lines: list[tuple[Cell, ...]] = []
    for row in then:
        other = now.get(row.name)
        lines.append((row.name, other.speed if other else 0.0, row.speed, verdict(row, other, threshold)))
    tails = _tails(measured.results, earlier.results, [row for row in then if row.name in now])
    lines += [(name, None, None, judged) for name, judged in tails]
    there = {row.hardware for row in then}
    decides = there == {row.hardware for row in now.values()}
    why = "" if decides else f"; for information only, since it was taken on {', '.join(there)}"
    heading = f"Against {baseline.name}, made by `{earlier.results.plan.command}`{why}"
    is_slower = decides and any(str(line[-1]).startswith("failed") for line in lines)
    return Table.of_cells(heading, ["row", "items/s", "baseline", "verdict"], lines), is_slower


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
            (failed if calls >= P95_CALLS else warned).append(f"p95 {p95:+.0%} of {calls} calls")
        if p99 > P99_RISE and calls >= P99_CALLS:
            warned.append(f"p99 {p99:+.0%} of {calls} calls")
    if failed:
        return f"failed: REGRESSION, {', '.join(failed + warned)}"
    return f"warning: {', '.join(warned)}" if warned else f"ok, items/s {change:+.1%}"


def tail_verdict(then: Tail, now: Tail) -> str:
    """Return `ok`, `warning` or `failed` and what changed, or that there are too few calls."""
    calls = min(then.calls, now.calls)
    if calls < P95_CALLS:
        return f"not judged: p95 needs {P95_CALLS} calls, not {calls}; p99 needs {P99_CALLS}"
    p95, p99 = now.p95 / then.p95 - 1, now.p99 / then.p99 - 1
    kind, p95_text, p99_text = "failed: REGRESSION" if p95 > P95_RISE else "ok", f"p95 {p95:+.0%}", f"p99 {p99:+.0%}"
    if calls < P99_CALLS:
        return f"{kind}, {p95_text} of {calls} calls; p99 needs {P99_CALLS}"
    if p95 <= P95_RISE and p99 > P99_RISE:
        return f"warning: {p99_text} of {calls} calls"
    return f"{kind}, {p95_text}, {p99_text} of {calls} calls"


def _tails(now: Results, then: Results, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield a name and a verdict for each target, over its rows that are in both runs."""
    targets = list(dict.fromkeys(row.target for row in rows))
    for target in targets:
        medians = {row.case: row.latency.p50_ms for row in rows if row.target == target and row.latency}
        shares = [_shares(results, medians) for results in (then, now)]
        if all(shares):
            tails = (Tail(len(each), *np.percentile(each, [95, 99]).tolist()) for each in shares)
            yield "all rows" if len(targets) == 1 else f"all rows of {target}", tail_verdict(*tails)


def _shares(results: Results, medians: Mapping[str, float]) -> list[float]:
    """Return the latencies of answered calls as shares of `medians`, by case in milliseconds."""
    answered = (call for call in results.asked("timed") if call.error is None and call.case in medians)
    return [call.latency_s * 1e3 / medians[call.case] for call in answered]
