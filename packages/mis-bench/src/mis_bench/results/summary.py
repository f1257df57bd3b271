"""A summary: every figure of a folder of results, computed from its raw records and nowhere else."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field

from mis_bench.artifact import Artifact
from mis_bench.results.decisions import decisions_findings
from mis_bench.results.deltas import Delta, deltas
from mis_bench.results.figures import Row, rows_of
from mis_bench.results.folder import read_results
from mis_bench.results.judging import COMPARED, UNOPPOSED, failed_gates, flag_slow_warm_rows, judged, with_winner
from mis_bench.results.plan import Gates, Plan, Tolerances
from mis_bench.results.records import Results
from mis_bench.results.scaling import callers_findings, with_limits
from mis_bench.results.statistics import ratio
from mis_bench.table import number


class Summary(Artifact, schema="mis-summary-v2", older=("mis-summary-v1",)):
    """`summary.json`: what records come to. `validate-artifacts` computes it anew."""

    run_id: str
    preset: str
    rows: list[Row]
    missed: list[str] = Field(description="Limits that rows missed.")
    findings: list[str] = Field(description="The winner, and how much others differ.")
    deltas: list[Delta] = Field(default=[], description="Differences from the reference, for a comparison.")
    passed: bool
    limits: Tolerances | None = Field(default=None, description="Limits for scores, as planned.")
    gates: Gates | None = Field(default=None, description="Limits for rows, as planned.")
    slo_p99_ms: float | None = Field(default=None, description="Objective of goodput, as planned.")

    @property
    def winner(self) -> Row | None:
        """The row that wins, if one does."""
        return next((row for row in self.rows if row.wins), None)


class Measured(NamedTuple):
    """A folder of results, with its figures."""

    folder: Path
    results: Results
    summary: Summary  # computed just now

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder; raises `ArtifactError` if it holds no results, or broken ones."""
        results = read_results(folder)
        return cls(folder, results, summarize(results))

    @property
    def drawn(self) -> list[Row]:
        """Rows whose figures may be drawn: a few answered calls of one that failed are no measurement."""
        return [row for row in self.summary.rows if row.status in ("ok", "warn") and row.items_per_second]


def summarize(results: Results) -> Summary:
    """Compute all figures of results."""
    plan, rows = results.plan, []
    answered = {call.case for call in results.asked("timed", "confirm") if call.error is None}
    fitting = {case.target for case in plan.cases if case.name in answered}
    for case in plan.cases:
        mine = results.of(case)
        rows += [judged(row, case, mine, fits=case.target in fitting) for row in rows_of(case, mine)]
    reference = plan.reference_among(each.target for each in results.opened if each.about is not None)
    rows = with_winner(plan, _with_ratios(flag_slow_warm_rows(with_limits(rows, results)), results))
    limits_missed = list(failed_gates(plan.gates, rows))
    apart = list(deltas(results, rows, reference)) if plan.preset == "compare" else []
    of_preset: Iterator[str] = iter(())
    if plan.preset == "callers":
        of_preset = callers_findings(results, rows)
    elif plan.preset == "decisions":
        of_preset = decisions_findings(plan, rows, reference)
    has_winner = plan.preset not in COMPARED or any(row.wins for row in rows)
    return Summary(
        run_id=plan.run_id,
        preset=plan.preset,
        rows=rows,
        missed=limits_missed,
        findings=[*_findings(plan, rows), *_compared(rows, apart), *of_preset],
        deltas=apart,
        passed=has_winner and not limits_missed and all(row.status != "failed" for row in rows),
        limits=plan.limits,
        gates=plan.gates,
        slo_p99_ms=plan.slo_p99_ms,
    )


def _with_ratios(rows: Sequence[Row], results: Results) -> list[Row]:
    """Return the rows with their ratios, round by round, to the reference's fastest row of the same calls.

    Targets that take turns have a reference among them, as for their scores.
    """
    plan, opened = results.plan, [each.target for each in results.opened if each.about is not None]
    found = []
    for row in rows:
        reference = plan.reference_among(name for name in opened if plan.are_open_together(name, row.target))
        theirs = [each for each in rows if each.target == reference and each.conditions == row.conditions]
        other = max(theirs, key=lambda each: each.speed, default=None)
        if other is not None and row.target != reference:
            row = row.model_copy(update={"ratio": ratio(row.items_per_second, other.items_per_second)})
        found.append(row)
    return found


def _findings(plan: Plan, rows: Sequence[Row]) -> Iterator[str]:
    """Yield who keeps to the objective, and who wins."""
    if plan.slo_p99_ms is not None:
        for target in dict.fromkeys(row.target for row in rows):
            yield _goodput(target, [row for row in rows if row.target == target], plan.slo_p99_ms)
    best = next((row for row in rows if row.wins), None)
    if best is not None and best.latency is not None:
        figures = f"{number(best.speed, 4)} items/s at a p95 of {number(best.latency.p95_ms, 4)} ms"
        yield f"{best.name} wins: {figures}, the most among those within the guardrail."
    elif alone := next((row.target for row in rows if UNOPPOSED in row.objections), None):
        yield f"{alone} does not win: no other target was measured to the end, so there is nothing to compare it with."
    elif plan.preset in COMPARED:
        yield "No target wins: none was correct compared with another, complete and without failures."


def _compared(rows: Sequence[Row], apart: Sequence[Delta]) -> Iterator[str]:
    """Yield where rows are better than the reference's, and where worse; no pair of rows twice."""
    objections = {row.name: row.objections for row in rows}
    portable = {(delta.row, delta.reference) for delta in apart if delta.view == "portable"}
    for delta in apart:
        if delta.view == "portable" or (delta.row, delta.reference) not in portable:
            why = objections[delta.row]
            yield delta.sentence + (f"; not eligible: {', '.join(why)}." if why else ".")


def _goodput(target: str, rows: Sequence[Row], slo_p99_ms: float) -> str:
    within = [row for row in rows if row.latency and row.latency.p99_ms <= slo_p99_ms and not row.failures]
    best = max(within, key=lambda row: row.speed, default=None)
    objective = f"a p99 of {slo_p99_ms:g} ms"
    if best is None or best.requests_per_second is None:
        return f"{target} keeps to {objective} under none of the loads."
    speeds = f"{number(best.requests_per_second.value, 4)} requests/s ({number(best.speed, 4)} items/s)"
    return f"{target} keeps to {objective} up to {speeds}, with {best.load}."
