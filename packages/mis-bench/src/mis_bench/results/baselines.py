"""A run beside an earlier one: rows that are alike, and whether one became slower.

Rows are compared where the model, the type and the requests are the same (`likeness`), on the same hardware; all others
are listed with the reason.

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

from mis_bench.results.figures import Row
from mis_bench.results.likeness import RowKey, partners
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


class Beside(NamedTuple):
    """A run beside an earlier one."""

    table: Table
    compares: bool  # whether any row does
    is_slower: bool  # whether a row (`verdict`) or a target's tail (`tail_verdict`) is a regression


def compare_to_baseline(measured: Measured, baseline: Path, threshold: float) -> Beside:
    """Compare a run with an earlier one; `threshold` is the drop that fails, as a share.

    Raises:
        ArtifactError: the earlier folder holds no results.
    """
    earlier = Measured.read(baseline)
    now = [(row, RowKey.of(row, measured.results)) for row in measured.summary.rows]
    then = [(row, RowKey.of(row, earlier.results)) for row in earlier.summary.rows if row.speed]
    pairs = partners(now, then)
    compared = [(row, other) for row, other in pairs if row.hardware == other.hardware]
    lines: list[tuple[Cell, ...]] = [
        (row.name, row.speed, other.speed, verdict(other, row, threshold)) for row, other in compared
    ]
    lines += [(name, None, None, judged) for name, judged in _tails(measured.results, earlier.results, compared)]
    for row, other in pairs:
        if row.hardware != other.hardware:
            why = f"not comparable: measured on {row.hardware}, and then on {other.hardware}"
            lines.append((row.name, row.speed, other.speed, why))
    lines += [(row.name, row.speed, None, why) for row, why in _alone(now, then, [row for row, _ in pairs])]
    paired = {id(other) for _, other in pairs}
    lines += [(row.name, None, row.speed, "not compared: only then") for row, _ in then if id(row) not in paired]
    table = Table.of_cells(_heading(measured.results, earlier), ["row", "items/s", "baseline", "verdict"], lines)
    is_slower = any(str(line[-1]).startswith("failed") for line in lines)
    return Beside(table, bool(compared), is_slower)


def _alone(
    now: Sequence[tuple[Row, RowKey]], then: Sequence[tuple[Row, RowKey]], paired: Sequence[Row]
) -> Iterator[tuple[Row, str]]:
    """Yield the rows without a partner, and why they have none."""
    keys = {row.name: key for row, key in then}
    for row, key in now:
        if any(row is each for each in paired):
            continue
        unlike = list(key.unlike(keys[row.name])) if row.name in keys else ["only now"]
        yield row, f"not compared: {'; '.join(unlike) or 'several rows are alike'}"


def _heading(now: Results, earlier: Measured) -> str:
    """Return what was compared with: its command, machine, commit, and the versions that are others now."""
    here, there = now.plan.environment, earlier.results.plan.environment
    commits = [f"{(each.commit or 'unknown')[:12]}{' with changes' if each.is_dirty else ''}" for each in (here, there)]
    names = sorted(here.versions.keys() | there.versions.keys())
    versions = [(name, here.versions.get(name, "none"), there.versions.get(name, "none")) for name in names]
    others = "".join(f", {name} {mine} and then {theirs}" for name, mine, theirs in versions if mine != theirs)
    made = f"Against {earlier.folder.name}, made by `{earlier.results.plan.command}` on {there.hardware}"
    return f"{made}; commit {commits[0]} and then {commits[1]}{others}"


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


def _tails(now: Results, then: Results, pairs: Sequence[tuple[Row, Row]]) -> Iterator[tuple[str, str]]:
    """Yield a name and a verdict for each target, over its rows that have a partner."""
    targets = list(dict.fromkeys(row.target for row, _ in pairs))
    for target in targets:
        mine = [(row, other) for row, other in pairs if row.target == target and other.latency]
        medians = {other.case: other.latency.p50_ms for _, other in mine if other.latency}
        before, after = _shares(then, medians), _shares(now, {row.case: medians[other.case] for row, other in mine})
        if before and after:
            tails = (Tail(len(each), *np.percentile(each, [95, 99]).tolist()) for each in (before, after))
            yield "all rows" if len(targets) == 1 else f"all rows of {target}", tail_verdict(*tails)


def _shares(results: Results, medians: Mapping[str, float]) -> list[float]:
    """Return the latencies of answered calls as shares of `medians`, by case in milliseconds."""
    answered = (call for call in results.asked("timed") if call.error is None and call.case in medians)
    return [call.latency_s * 1e3 / medians[call.case] for call in answered]
