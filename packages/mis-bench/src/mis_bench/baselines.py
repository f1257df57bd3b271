"""A run beside an earlier one: rows of the same name, and whether one became slower."""

from pathlib import Path

from mis_bench.artifact import ArtifactError
from mis_bench.records import read_results
from mis_bench.summary import Summary, summarize
from mis_bench.table import Table


def beside(summary: Summary, baseline: Path, threshold: float) -> tuple[Table, bool]:
    """Compare items per second with an earlier run's, row by row; one that was measured then only is a regression.

    Args:
        summary: Of this run.
        baseline: Folder of the earlier run.
        threshold: Drop that is a regression, as a share.

    Returns:
        The table, and whether a row is a regression on the same hardware.

    Raises:
        ArtifactError: the folder holds no results, or those of other requests or loads.
    """
    then = [row for row in summarize(read_results(baseline)).rows if row.speed]
    now = {row.name: row for row in summary.rows}
    unlike = [row.name for row in then if row.name in now and now[row.name].conditions != row.conditions]
    if unlike or not any(row.name in now for row in then):
        raise ArtifactError(f"{baseline} was measured otherwise: {', '.join(unlike) or 'no row is in both'}.")
    speeds = {row.name: now[row.name].speed if row.name in now else 0.0 for row in then}
    slower = [row.name for row in then if speeds[row.name] < (1 - threshold) * row.speed]
    there = {row.hardware for row in then}
    decides = there == {row.hardware for row in summary.rows}
    why = "" if decides else f"; for information only, since it was taken on {', '.join(there)}"
    table = Table.of(
        f"Against {baseline.name}{why}",
        then,
        {
            "row": lambda row: row.name,
            "items/s": lambda row: speeds[row.name],
            "baseline": lambda row: row.speed,
            "change": lambda row: f"{speeds[row.name] / row.speed - 1:+.1%}",
            "verdict": lambda row: "failed: REGRESSION" if row.name in slower else "ok",
        },
    )
    return table, bool(slower) and decides
