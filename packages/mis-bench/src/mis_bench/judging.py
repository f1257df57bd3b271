"""What figures mean: whether a row is clean, what may win, and which limits were missed."""

from collections.abc import Iterable, Iterator, Sequence

from mis_bench.figures import Evidence, Row, Status
from mis_bench.records import Gates, Limits, Plan

STEADY = 2.0
"""The last warm-up takes at most this many times the timed median."""

DOES_NOT_FIT = ("rejected", "out_of_memory")
"""Error codes before the timed rounds that say that a case does not fit its target."""

UNAVAILABLE = "the target could not run"
"""Reason of a row whose target was missing, where that is allowed."""

COMPARED = ("compare", "matrix")
"""Presets that look for a winner."""


def judged(row: Row, found: Evidence) -> Row:
    """Return a row with its status, the reasons for it, and what there is against its winning."""
    status, reasons = _status(row, found)
    row = row.model_copy(update={"status": status, "reasons": reasons})
    objections = list(_objections(row, found)) if found.plan.reference is not None else []
    return row.model_copy(update={"objections": objections})


def fail_targets_that_do_not_fit(plan: Plan, rows: Sequence[Row]) -> list[Row]:
    """Turn the skipped rows of a target that answered nothing at all into failed ones."""
    fits = {row.target for row in rows if row.latency is not None or UNAVAILABLE in row.reasons[:1]}
    planned = {case.name for case in plan.cases if case.skip is None}
    return [
        row.model_copy(update={"status": "failed"})
        if row.status == "skipped" and row.case in planned and row.target not in fits
        else row
        for row in rows
    ]


def doubt_slow_caches(rows: Sequence[Row]) -> list[Row]:
    """Mark rows of kept queries that are surely slower than those of computed ones: something else was measured."""
    cold = {(row.target, row.workload, row.load, row.phase): row for row in rows if row.cache == "cold"}
    found = []
    for row in rows:
        other = cold.get((row.target, row.workload, row.load, row.phase)) if row.cache == "warm" else None
        mine, theirs = row.items_per_second, other.items_per_second if other else None
        if other is not None and mine and theirs and mine.high < theirs.low and row.status != "failed":
            reasons = [*row.reasons, f"slower than {other.name}, which computes the query"]
            row = row.model_copy(update={"status": "warn", "reasons": reasons})
        found.append(row)
    return found


def with_winner(plan: Plan, rows: Sequence[Row]) -> list[Row]:
    """Mark the winner, of the confirmation if there was one."""
    if plan.preset not in COMPARED:
        return list(rows)
    phase = "confirm" if any(row.phase == "confirm" for row in rows) else "timed"
    best = winner([row for row in rows if row.phase == phase], plan.limits)
    return [row.model_copy(update={"wins": row is best}) for row in rows]


def winner(rows: Sequence[Row], limits: Limits) -> Row | None:
    """Return the row with most items per second of those that may win and keep to the guardrail.

    The guardrail is the lowest p95 of rows that may win, times `limits.guardrail_ratio`. At equal speed smaller calls
    win.
    """
    able = [row for row in rows if not row.objections and row.latency is not None and row.is_whole]
    guardrail = min((row.latency.p95_ms for row in able if row.latency), default=0.0) * limits.guardrail_ratio
    within = [row for row in able if row.latency and row.latency.p95_ms <= guardrail]
    return max(within, key=lambda row: (row.speed, -row.chunk_items), default=None)


def to_confirm(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """Return the cases by which a sweep's winner is confirmed: the smallest calls, itself, its neighbours in size."""
    swept = [row for row in rows if row.phase == "timed"]
    best = winner(swept, plan.limits)
    if best is None:
        return []
    alike = [row for row in swept if not row.objections and _kind(row) == _kind(best)]
    alike.sort(key=lambda row: row.chunk_items or row.num_items)
    place = next(index for index, row in enumerate(alike) if row is best)
    return [alike[index].case for index in sorted({0, max(0, place - 1), place, min(place + 1, len(alike) - 1)})]


def missed(gates: Gates, rows: Iterable[Row]) -> Iterator[str]:
    """Yield a sentence for every limit that a row does not keep to; a row without figures keeps to none.

    Of a trace, throughput is that of all sizes together, and latencies those of each size.
    """
    for row in rows:
        p50, p99 = (row.latency.p50_ms, row.latency.p99_ms) if row.latency else (None, None)
        is_size = not row.is_whole
        figures = {
            "max_p99_ms": p99,
            "max_p99_over_p50": p99 / p50 if p50 and p99 is not None else None,
            "min_items_per_second": row.speed if row.items_per_second else None,
        }
        has_sizes = any(each.case == row.case and not each.is_whole for each in rows)
        for gate, measured in figures.items():
            limit: float | None = getattr(gates, gate)
            applies = is_size if has_sizes and gate != "min_items_per_second" else not is_size
            if limit is None or not applies:
                continue
            if measured is None:
                yield f"{row.name}: {gate} is {_figure(limit)}, but nothing was measured"
            elif (measured < limit) if gate.startswith("min") else (measured > limit):
                share, how = abs(measured / limit - 1), "little" if gate.startswith("min") else "much"
                found = f"measured {_figure(measured)}, {100 * share:.2g} % too {how}"
                yield f"{row.name}: {gate} is {_figure(limit)}, {found}"


def _status(row: Row, found: Evidence) -> tuple[Status, list[str]]:
    if found.case.skip is not None:
        return "skipped", [found.case.skip]
    if found.unavailable is not None:
        return "skipped", [UNAVAILABLE, found.unavailable]
    gate = next((gate for gate in found.gates if gate.error is not None), None)
    early = next((call for call in found.warmups if call.error is not None), gate)
    if row.calls == 0 and early is not None:
        status = "skipped" if early.error in DOES_NOT_FIT else "failed"
        return status, [f"{early.error}: {early.message}"]
    failures = list(_failures(row, found))
    if failures:
        return "failed", failures
    doubts = list(_doubts(row, found))
    return ("warn" if doubts else "ok"), doubts


def _failures(row: Row, found: Evidence) -> Iterator[str]:
    calls = [call for each in found.calls.values() for call in each]
    bad = next((call for call in calls if call.error is not None and call.error not in found.case.tolerated), None)
    if bad is not None:
        yield f"{bad.error}: {bad.message}"
    if not calls:
        yield "nothing was measured"
    late = next((call for call in found.afterwards if call.error is not None), None)
    if late is not None:
        yield f"no answer afterwards: {late.error}: {late.message}"
    limits = found.plan.limits
    for gate in found.gates:
        if gate.error is not None:
            yield f"{gate.name}: {gate.error}: {gate.message}"
        elif not limits.allow(gate.max_abs or 0.0, gate.mean_abs or 0.0):
            yield f"{gate.name}: scores differ by up to {gate.max_abs:.4f}, {gate.mean_abs:.4f} on average"
    apart = [
        call for call in calls if call.max_abs is not None and not limits.allow(call.max_abs, call.mean_abs or 0.0)
    ]
    if apart:
        yield f"scores of {len(apart)} timed requests differ by up to {row.max_abs:.4f}"


def _doubts(row: Row, found: Evidence) -> Iterator[str]:
    windows = [window for each in found.windows.values() for window in each if window.phase != "warmup"]
    if row.cache == "cold" and row.cached_tokens:
        yield f"the cache was not cold: replies told of up to {row.cached_tokens} kept query tokens"
    elif row.cache == "cold" and any(not window.forgot for window in windows):
        yield "earlier requests may have left their queries: the target knows no way to forget"
    if row.compilations:
        yield f"{row.compilations} compilations in the timed window"
    if found.case.warmups > 1 and row.warmup_ratio is not None and row.warmup_ratio > STEADY:
        yield f"the last warm-up took {row.warmup_ratio:.1f} times the timed median"


def _objections(row: Row, found: Evidence) -> Iterator[str]:
    if row.status in ("failed", "skipped"):
        yield from row.reasons or [row.status]
        return
    if row.success_rate < 1:
        yield f"success rate {row.success_rate:.0%}"
    if row.latency is None:
        yield "no timings"
    if row.max_abs is None:
        yield "no scores to check"
    if found.case.is_partial:
        yield f"scores compared on {found.case.workload.num_items} items only"
    if row.compilations:
        yield f"{row.compilations} compilations in timed rounds"
    if row.cache == "cold" and row.cached_tokens:
        yield "was not cold"


def _kind(row: Row) -> tuple[str, str, str]:
    layout = {name: value for name, value in row.layout.items() if name != "multi_item_scoring_chunk_size"}
    return row.target, row.workload, str(sorted(layout.items()))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
