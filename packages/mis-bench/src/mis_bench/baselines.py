"""A run beside an earlier one: rows of the same name, and whether one became slower."""

from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifact import ArtifactError
from mis_bench.records import read_results
from mis_bench.summary import Summary, summarize


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows beside those of an earlier run.

    Attributes:
        title: What they were compared with, and whether it decides anything.
        lines: Name, items per second now and then, change, verdict.
        is_regression: Whether a row is slower by more than the threshold, on the same hardware.
    """

    title: str
    lines: list[list[str]]
    is_regression: bool


def beside(summary: Summary, baseline: Path, threshold: float) -> Beside:
    """Compare items per second with an earlier run's, row by row.

    Args:
        summary: Of this run.
        baseline: Folder of the earlier run.
        threshold: Drop that is a regression, as a share.

    Raises:
        ArtifactError: the folder holds no results, or none of the same rows.
    """
    results = read_results(baseline)
    then = {row.name: row for row in summarize(results).rows}
    both = [row for row in summary.rows if row.name in then]
    if not both:
        raise ArtifactError(f"{baseline} has none of these rows.")
    decides = {row.hardware for row in both} == {then[row.name].hardware for row in both}
    lines, slower = [], False
    for row in both:
        if not row.speed or not then[row.name].speed:
            lines.append([row.name, "", "", "", "not measured in both"])
            continue
        change = row.speed / then[row.name].speed - 1
        is_slower = change < -threshold
        slower |= is_slower
        verdict = "failed: REGRESSION" if is_slower else "ok"
        lines.append([row.name, f"{row.speed:,.2f}", f"{then[row.name].speed:,.2f}", f"{change:+.1%}", verdict])
    why = f"; for information only, since it was taken on {then[both[0].name].hardware}"
    return Beside(f"Against {baseline.name}{'' if decides else why}", lines, slower and decides)
