"""A summary: every figure of a folder of results, computed from its raw records and nowhere else."""

from pydantic import Field

from mis_bench.artifact import Artifact
from mis_bench.figures import Row, evidence, rows_of
from mis_bench.findings import findings, with_ratios
from mis_bench.judging import COMPARED, doubt_slow_caches, fail_targets_that_do_not_fit, judged, missed, with_winner
from mis_bench.records import Results


class Summary(Artifact, schema="mis-summary-v1"):
    """`summary.json`: what records come to. `validate-artifacts` computes it anew."""

    run_id: str
    preset: str
    rows: list[Row]
    missed: list[str] = Field(description="Limits that rows did not keep to.")
    findings: list[str] = Field(description="Who wins, and by how much others differ.")
    passed: bool

    @property
    def winner(self) -> Row | None:
        """The row that wins, if one does."""
        return next((row for row in self.rows if row.wins), None)


def summarize(results: Results) -> Summary:
    """Compute all figures of results."""
    plan, found = results.plan, evidence(results)
    rows = [judged(row, each) for each in found.values() for row in rows_of(each)]
    opened = [each.target for each in results.opened if each.about is not None]
    rows = with_winner(plan, with_ratios(plan, doubt_slow_caches(fail_targets_that_do_not_fit(plan, rows)), opened))
    limits_missed = list(missed(plan.gates, rows))
    return Summary(
        run_id=plan.run_id,
        preset=plan.preset,
        rows=rows,
        missed=limits_missed,
        findings=findings(plan, rows, opened),
        passed=not limits_missed
        and all(row.status != "failed" for row in rows)
        and (plan.preset not in COMPARED or any(row.wins for row in rows)),
    )
