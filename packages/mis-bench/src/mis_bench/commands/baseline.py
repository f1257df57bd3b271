"""What `run --baseline` prints: a run beside stored figures."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

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
    """
    from mis_bench.perf.stored import compare_with_baseline

    rows = compare_with_baseline(result.rows, stored.rows, threshold=threshold)
    hardware = result.environment.hardware
    decides = stored.hardware in (None, hardware)
    why = "" if decides else f"; for information only, since it was taken on {stored.hardware}, and this is {hardware}"
    table = Table(title=f"Against the baseline{why}", title_justify="left")
    for heading in ("row", "items/s", "p95", "p99", "status"):
        table.add_column(heading, justify="left" if heading in ("row", "status") else "right")
    for row in rows:
        rises = ("" if rise is None else f"{rise:+.0%}" for rise in (row.p95, row.p99))
        table.add_row(
            row.name, f"{row.throughput:+.1%}", *rises, " ".join([row.status, ", ".join(row.reasons)]).strip()
        )
    show(table)
    if not rows:
        raise click.ClickException("No row of this run is in the baseline: it has other sizes, another model or dtype.")
    if len(rows) < len(result.rows):
        missing = len(result.rows) - len(rows)
        click.echo(
            f"{missing} of {len(result.rows)} rows are not in the baseline: other sizes, model or dtype.", err=True
        )
    return decides and any(row.status == "REGRESSION" for row in rows)
