"""The C library's heap: what is free in it goes back to the system."""

import ctypes

TRIM_S = 10.0
"""Between two trims of a process."""


def trim() -> None:
    """Return memory that is free between small blocks that are not; without glibc, do nothing.

    The heap of a process that had thousands of small objects ends in one that stays, and the C library returns only
    what lies behind the last one: after some attacks, 40 MiB were free and not returned. It takes some milliseconds,
    without the interpreter's lock. See malloc_trim(3).
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return
    malloc_trim(0)
