"""What `run --baseline` prints: a run beside stored figures."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mis_bench.commands.measuring import show

if TYPE_CHECKING:
    from mis_bench.artifacts.run import RunResult
    from mis_bench.perf.rows import StoredRows


def stored_rows(path: Path) -> "StoredRows":
    """Read the file of `--baseline`."""
    from mis_bench.artifacts.base import ArtifactError
    from mis_bench.perf.rows import read_rows

    try:
        return read_rows(path)
    except ArtifactError as error:
        raise click.BadParameter(str(error), param_hint="--baseline") from None


def show_beside(result: "RunResult", stored: "StoredRows", threshold: float) -> bool:
    """Print a run beside stored figures; return whether it is a regression on the same hardware.

    Args:
        result: The run.
        stored: What `stored_rows` read.
        threshold: Drop of throughput that is a regression, as a share.

    Raises:
        click.ClickException: the two were measured under different conditions.
    """
    from mis_bench.perf.rows import rows_of
    from mis_bench.perf.stored import compare_with_baseline
    from mis_bench.perf.table import baseline_table

    if unlike := "; ".join(stored.unlike(result)):
        raise click.ClickException(f"The baseline was measured otherwise: {unlike}.")
    found = compare_with_baseline(rows_of(result), stored.rows, threshold=threshold)
    hardware = result.environment.hardware
    decides = stored.hardware in (None, hardware)
    why = "" if decides else f"; for information only, since it was taken on {stored.hardware}, and this is {hardware}"
    show(baseline_table(f"Against the baseline{why}", found.rows))
    if lost := len(found.rows) - found.common:
        click.echo(f"{lost} of {len(found.rows)} rows of the baseline were not measured.", err=True)
    if found.new:
        click.echo(f"{found.new} measured rows are not in the baseline: other sizes, model or dtype.", err=True)
    return decides and any(row.status == "REGRESSION" for row in found.rows)
