"""Memory of this process: how much it may use, and the return of what it no longer uses."""

import asyncio
import ctypes
import os
from pathlib import Path

from mis_core.process.heap import TRIM_S, trim

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")

# From malloc.h of glibc.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2


def return_freed_memory() -> None:
    """Have the C library return memory to the system as soon as it is free; without glibc, do nothing.

    By default glibc learns from each large block that is freed to keep blocks of its size, up to 32 MiB, and each of
    many threads has a heap of its own: after some large bodies and replies a process keeps hundreds of megabytes. Now
    whatever is large is mapped for itself, and few threads have heaps.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_ARENA_MAX, _ARENAS)


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
