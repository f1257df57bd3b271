"""What figures mean: whether a row is clean, what may win, and which limits were missed."""

import math
from collections.abc import Iterator, Sequence

from mis_bench.results.figures import Row, Status
from mis_bench.results.plan import Case, Gates, Plan, Tolerances
from mis_bench.results.records import Results
from mis_bench.results.statistics import Latency
from mis_bench.table import number
from mis_bench.workload import task_of

STEADY = 2.0
"""The last warm-up takes at most this many times the timed median."""

DOES_NOT_FIT = ("rejected", "out_of_memory")
"""Error codes before the timed rounds that say that a case does not fit its target."""

SURE = 4
"""Rounds of two equal cases that all differ one way with a chance of one in seventy."""

TEMPLATED = ("rerank", "decisions", "systemone")
"""Tasks whose prompts begin with the model's template, which is kept whatever the query is."""

UNOPPOSED = "no other target was measured to the end"
"""What there is against the only target of a comparison that answered every request."""

COMPARED = ("compare", "matrix")
"""Presets that look for a winner."""


def judged(row: Row, case: Case, mine: Results, *, fits: bool) -> Row:
    """Return a row with its status, the reasons for it, and what there is against its winning.

    `fits` says whether the target answered any timed request, of this case or another.
    """
    status, reasons = _status(row, case, mine, fits)
    objections = list(reasons)
    if row.max_abs is None and status not in ("failed", "skipped"):
        objections.append("no scores to check")
    if case.is_partial:
        objections.append(f"scores compared on {case.workload.num_items} items only")
    if mine.plan.reference is None:
        objections = []
    return row.model_copy(update={"status": status, "reasons": reasons, "objections": objections})


def flag_slow_warm_rows(rows: Sequence[Row]) -> list[Row]:
    """Mark rows of kept queries that are surely slower than those of computed ones: something else was measured."""
    cold = {(row.target, row.workload, row.load, row.phase): row for row in rows if row.cache == "cold"}
    found = []
    for row in rows:
        other = cold.get((row.target, row.workload, row.load, row.phase)) if row.cache == "warm" else None
        mine, theirs = row.items_per_second, other.items_per_second if other else None
        is_slower = mine is not None and theirs is not None and mine.high < theirs.low and len(mine.rounds) >= SURE
        if other is not None and is_slower and row.status != "failed":
            reasons = [*row.reasons, f"slower than {other.name}, which computes the query"]
            row = row.model_copy(update={"status": "warn", "reasons": reasons})
        found.append(row)
    return found


def with_winner(plan: Plan, rows: Sequence[Row]) -> list[Row]:
    """Mark the winner, of the confirmation if there was one."""
    if plan.preset not in COMPARED:
        return list(rows)
    if plan.preset == "compare":
        rows = _opposed(rows)
    confirmed = [row for row in rows if row.phase == "confirm"]
    best = winner(confirmed or rows, plan.limits)
    return [row.model_copy(update={"wins": row is best}) for row in rows]


def _opposed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with an objection if only one target answered every request: nobody wins by others' failing."""
    complete = {row.target for row in rows if row.items_per_second and not row.failures}
    alone = complete if len(complete) == 1 else ()
    return [
        row.model_copy(update={"objections": [*row.objections, UNOPPOSED]}) if row.target in alone else row
        for row in rows
    ]


def winner(rows: Sequence[Row], limits: Tolerances) -> Row | None:
    """Return the row with most items per second of those that may win and keep to the guardrail.

    The guardrail is the lowest p95 of rows that may win, times `limits.guardrail_ratio`. At equal speed smaller calls
    win.
    """
    able = [(row.latency.p95_ms, row) for row in rows if not row.objections and row.latency]
    guardrail = min((p95 for p95, _ in able), default=0.0) * limits.guardrail_ratio
    within = [row for p95, row in able if p95 <= guardrail]
    return max(within, key=lambda row: (row.speed, -row.chunk_items), default=None)


def to_confirm(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """Return the cases by which a sweep's winner is confirmed: the smallest calls, itself, its neighbours in size."""
    best = winner(rows, plan.limits)
    if best is None:
        return []
    alike = [row for row in rows if not row.objections]
    alike.sort(key=lambda row: row.chunk_items or row.num_items)
    middle = alike.index(best)
    return [alike[index].case for index in sorted({0, max(0, middle - 1), middle, min(middle + 1, len(alike) - 1)})]


def failed_gates(gates: Gates, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for every limit that a row does not keep to; a row without figures keeps to none.

    Of a trace, throughput is that of all sizes together, and latencies those of each size.
    """
    with_sizes = {row.case for row in rows if not row.is_whole}
    for row in rows:
        figures: dict[str, float | None] = {"min_items_per_second": row.speed or None} if row.is_whole else {}
        if not row.is_whole or row.case not in with_sizes:
            figures["max_p99_ms"] = row.latency.p99_ms if row.latency else None
            figures["max_p99_over_p50"] = _spread(row.latency) if row.latency else None
        for gate, measured in figures.items():
            limit: float | None = getattr(gates, gate)
            if limit is None:
                continue
            if measured is None:
                yield f"{row.name}: {gate} is {number(limit, 4)}, but nothing was measured"
            elif (measured < limit) if gate.startswith("min") else (measured > limit):
                found = f"measured {number(measured, 4)}, {100 * (measured / limit - 1):+.2g} %"
                yield f"{row.name}: {gate} is {number(limit, 4)}, {found}"


def _spread(latency: Latency) -> float:
    return latency.p99_ms / latency.p50_ms if latency.p50_ms else math.inf


def _status(row: Row, case: Case, mine: Results, fits: bool) -> tuple[Status, list[str]]:
    if mine.opened and mine.opened[-1].unavailable is not None:
        return "skipped", ["the target could not run", mine.opened[-1].unavailable]
    early = next((record for record in (*mine.asked("warmup"), *mine.gates) if record.error is not None), None)
    if row.calls == 0 and early is not None:  # what does not fit is skipped, where other cases of the target do
        is_skipped = early.error in DOES_NOT_FIT and fits
        return "skipped" if is_skipped else "failed", [f"{early.error}: {early.message}"]
    if failures := list(_failures(row, case, mine)):
        return "failed", failures
    doubts = list(_doubts(row, case, mine))
    return ("warn" if doubts else "ok"), doubts


def _failures(row: Row, case: Case, mine: Results) -> Iterator[str]:
    limits, calls = mine.plan.limits, mine.asked("timed", "confirm")
    bad = next((call for call in calls if call.error is not None and call.error not in case.tolerated), None)
    if bad is not None:
        yield f"{bad.error}: {bad.message}"
    if not calls:
        yield "nothing was measured"
    late = next((call for call in mine.asked("afterwards") if call.error is not None), None)
    if late is not None:
        yield f"no answer afterwards: {late.error}: {late.message}"
    for gate in mine.gates:
        if gate.error is not None:
            yield f"{gate.name}: {gate.error}: {gate.message}"
        elif not limits.allow(gate.max_abs or 0.0, gate.mean_abs or 0.0):
            yield f"{gate.name}: scores differ by up to {gate.max_abs:.4f}, {gate.mean_abs:.4f} on average"
    apart = sum(not limits.allow(call.max_abs or 0.0, call.mean_abs or 0.0) for call in calls)
    if apart:
        yield f"scores of {apart} timed requests differ by up to {row.max_abs:.4f}"


def _doubts(row: Row, case: Case, mine: Results) -> Iterator[str]:
    is_templated = task_of(case.workload.name) in TEMPLATED
    if row.cache == "cold" and row.cached_tokens and not is_templated:
        yield f"the cache was not cold: replies report up to {row.cached_tokens} cached query tokens"
    elif row.cache == "cold" and not all(window.forgot for window in mine.windows if window.phase != "warmup"):
        yield "the target cannot clear its prefix cache, so earlier requests may have left their queries"
    if row.compilations:
        yield f"{row.compilations} compilations in the timed window"
    if case.warmups > 1 and row.warmup_ratio is not None and row.warmup_ratio > STEADY:
        yield f"the last warm-up took {row.warmup_ratio:.1f} times the timed median"
