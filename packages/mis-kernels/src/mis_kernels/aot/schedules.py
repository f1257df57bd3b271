"""Reads the compiler's dumped schedules: one VLIW bundle is about one cycle, stalls not counted."""

import re
from pathlib import Path
from typing import NamedTuple

_BUNDLE = re.compile(r"\s*0x([0-9a-f]+)\s+(LB|LH|LE|PB|PF)?")
BODY = 250
"""A straight run of at least this many bundles is taken for a tile's arithmetic."""


class Schedule(NamedTuple):
    """Static schedule of one kernel.

    Attributes:
        bundles: All bundles, each counted once whatever the control flow.
        runs: Lengths of the straight runs of bundles between labels and branches, in program order.
    """

    bundles: int
    runs: list[int]


def read_schedule(folder: Path, kernel: str) -> Schedule:
    """Read the newest schedule of a kernel from a dump folder, and empty the folder.

    Raises:
        FileNotFoundError: the compiler dumped none.
    """
    found = sorted(folder.glob(f"*{kernel}*[0-9]-final_bundles.txt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError(f"no schedule of {kernel} was dumped; this libtpu may have renamed its flags")
    runs, bundles = [0], 0
    for line in found[-1].read_text().splitlines():
        match = _BUNDLE.match(line)
        if match is None:
            continue
        if match.group(2):
            runs.append(0)
        runs[-1] += 1
        bundles += 1
        if "sbr.rel" in line:
            runs.append(0)
    for path in folder.iterdir():
        path.unlink()
    return Schedule(bundles, [run for run in runs if run])


def tile_bodies(schedule: Schedule) -> dict[str, int]:
    """Return the bundles of each kind of tile, of a tile that is computed anew, and of a block's beginning and end."""
    kinds = ("full", "limited", "masked", "anew")
    largest = sorted(sorted(range(len(schedule.runs)), key=lambda i: schedule.runs[i])[-len(kinds) :])
    bodies = dict(zip(kinds, (schedule.runs[i] for i in largest), strict=False))
    return {**bodies, "rest": schedule.bundles - sum(bodies.values())}
