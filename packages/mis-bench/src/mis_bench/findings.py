"""Ratios to the reference, and what they come to in sentences."""

from collections.abc import Iterable, Iterator, Sequence

from mis_bench.figures import Row
from mis_bench.gating import reference_of
from mis_bench.records import Plan
from mis_bench.statistics import Estimate, estimate, ratio_of_medians


def with_ratios(plan: Plan, rows: Sequence[Row], opened: Iterable[str]) -> list[Row]:
    """Return the rows with their ratios to the reference's row of the same calls."""
    reference = reference_of(plan, opened)
    theirs = [row for row in rows if row.target == reference and row.is_whole]
    return [row.model_copy(update={"ratio": _ratio(plan, row, theirs)}) for row in rows]


def findings(plan: Plan, rows: Sequence[Row], opened: Iterable[str]) -> list[str]:
    """Return who wins, and how far each target at its best is from the reference at its best."""
    reference = reference_of(plan, opened)
    found = [*_goodput(plan, rows)]
    if any(row.objections or row.wins for row in rows) or len({row.target for row in rows}) > 1:
        found += [*_winner(plan, rows), *(_at_their_best(plan, rows, reference) if reference else ())]
    return found


def label(row: Row) -> str:
    """Return a row's target with what sets it apart from the target's other rows."""
    chosen = [f"calls of {row.chunk_items} items"] if row.chunk_items else []
    return ", ".join([row.target, *chosen, *(f"{name}={value}" for name, value in row.layout.items())])


def _ratio(plan: Plan, row: Row, theirs: Sequence[Row]) -> Estimate | None:
    same = [each for each in theirs if each.conditions == row.conditions]
    other = max(same, key=lambda each: each.speed, default=None)
    if other is None or row.target == other.target or not row.is_whole:
        return None
    return ratio(plan, row, other)


def ratio(plan: Plan, row: Row, other: Row) -> Estimate | None:
    """Return the ratio of the rows' items per second: by rounds if they took turns in them."""
    mine, theirs = row.items_per_second, other.items_per_second
    if mine is None or theirs is None:
        return None
    if plan.took_turns and len(mine.rounds) == len(theirs.rounds):
        return estimate([a / b for a, b in zip(mine.rounds, theirs.rounds, strict=True)])
    return ratio_of_medians(mine.rounds, theirs.rounds)


def _goodput(plan: Plan, rows: Sequence[Row]) -> Iterator[str]:
    if plan.slo_p99_ms is None:
        return
    for target in dict.fromkeys(row.target for row in rows):
        within = [
            row for row in rows
            if row.target == target and row.latency and row.latency.p99_ms <= plan.slo_p99_ms and not row.failures
        ]  # fmt: skip
        best = max(within, key=lambda row: row.speed, default=None)
        objective = f"a p99 of {plan.slo_p99_ms:g} ms"
        if best is None or best.requests_per_second is None:
            yield f"{target} keeps to {objective} under none of the loads."
        else:
            yield (
                f"{target} keeps to {objective} up to {best.requests_per_second.value:,.4g} requests/s "
                f"({best.speed:,.4g} items/s), with {best.load}."
            )


def _winner(plan: Plan, rows: Sequence[Row]) -> Iterator[str]:
    best = next((row for row in rows if row.wins), None)
    if best is not None and best.latency is not None:
        yield (
            f"{label(best)} wins: {best.speed:,.4g} items/s at a p95 of {best.latency.p95_ms:,.4g} ms, the most among "
            "those within the guardrail."
        )
    elif plan.preset in ("compare", "matrix"):
        yield "No target may win: none is correct beside another, complete and without failures."


def _at_their_best(plan: Plan, rows: Sequence[Row], reference: str) -> Iterator[str]:
    best: dict[str, Row] = {}
    for row in rows:
        if row.is_whole and row.items_per_second is not None:
            rank = (not row.objections, row.speed)
            other = best.get(row.target)
            if other is None or rank > (not other.objections, other.speed):
                best[row.target] = row
    for target, row in best.items():
        found = ratio(plan, row, best[reference]) if target != reference and reference in best else None
        if found is None:
            continue
        level = ", level within the noise" if found.low != found.high and found.low <= 1 <= found.high else ""
        caveat = f"; not eligible: {', '.join(row.objections)}" if row.objections else ""
        yield (
            f"At its best, {label(row)} scores {found.value:.3g} times ({found.low:.3g} to {found.high:.3g}) the items "
            f"per second of {reference}{level}{caveat}."
        )
