"""Runs a worker that compiles for GPUs, prints what it found, and says what is wrong with it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mis_kernels.aot import baseline
from mis_kernels.aot.cuda.targets import environment

Row = dict[str, Any]

FUSED = 2
"""By so many launches layers may differ between shapes: sums of a few integers are fused with others, or are not."""


def run(worker: Sequence[str], stored: Path, update: bool) -> int:
    """Run `python -m WORKER ...`, print a line for each program, and compare with stored figures.

    Args:
        worker: Module and arguments.
        stored: The baseline's file.
        update: Store the figures instead of comparing.

    Returns:
        The exit status: 1 if the compiler refused something, or a figure is worse.
    """
    command = [sys.executable, "-P", "-m", *worker]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        sys.stdout.write(line_of(row) + "\n")
    problems = depends_on_data(rows)
    if done.returncode:
        problems.append("the compiler:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]))
    by_target: dict[str, list[Row]] = {}
    for row in rows:
        by_target.setdefault(row["target"], []).append(row)
    return baseline.judge(stored, by_target, problems, update=update)


def line_of(row: Row) -> str:
    """Return a line about a program."""
    loops = "".join(f" + {loop} a turn" for loop in row["loops"])
    where, in_all = (" a layer", f", {row['in_all']} in all") if "in_all" in row else ("", "")
    memory = f"temporaries {row['temporaries'] / 2**20:.1f} MiB"
    launches = f"launches{where} {row['launches']}{loops}{in_all}"
    return f"{row['target']:5} {row['name']:52} {row['seconds']:5.1f} s  {launches}, {memory}"


def depends_on_data(rows: list[Row]) -> list[str]:
    """Name programs whose launches depend on what a step holds: in a loop, or by another number for another step."""
    found = [f"{row['target']}: {row['name']}: a loop's turns depend on data" for row in rows if row["loops"]]
    operations: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        operations.setdefault((row["target"], row["name"].partition(", ")[0]), []).append(row)
    for (target, operation), same in operations.items():
        least, most = (choose(same, key=lambda row: row["launches"]) for choose in (min, max))
        if most["launches"] - least["launches"] > (FUSED if "in_all" in most else 0):
            each = ", ".join(f"{row['launches']} with {row['name'].partition(', ')[2]}" for row in (least, most))
            found.append(f"{target}: {operation}: launches are not constant: {each}")
    return found
