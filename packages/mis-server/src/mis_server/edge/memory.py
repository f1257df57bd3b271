"""Memory of this process: how much it may use, and the return of what it no longer uses."""

import asyncio
import os
from pathlib import Path

from mis_core.process.heap import TRIM_S, trim

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


async def return_memory_between(period_s: float = TRIM_S) -> None:
    """Return memory that is free between small blocks that are not, again and again."""
    while True:
        await asyncio.sleep(period_s)
        await asyncio.to_thread(trim)


def allowed_memory(own: Path = _OWN, root: Path = _CGROUPS) -> int:
    """Return the bytes that the machine has, or that a control group above this process allows if that is less.

    Args:
        own: Which groups this process is in; see cgroups(7).
        root: Where the groups are mounted: version 2, or version 1 with a folder for each controller.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return limits[0]
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            limits += _limits(root, group, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "memory", group, "memory.limit_in_bytes")
    return min(limits)


def _limits(root: Path, group: str, name: str) -> list[int]:
    """Return the limits of a group and of those above it; within a container, their folders may not be there."""
    path = Path(group.strip("/"))
    folders = [root / part for part in (path, *path.parents)]
    found = []
    for folder in folders:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # otherwise "max"
            found.append(int(text))
    return found
