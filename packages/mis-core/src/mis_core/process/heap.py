"""The memory of a process: what is free goes back to the system, and a start looks for no garbage.

Without glibc, nothing goes back here.
"""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator

TRIM_S = 10.0
"""Between two trims of a process."""

# From malloc.h of glibc.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Do not look for unreachable cycles of objects; at the end, exempt all that exist from later looks.

    Nearly all that imports, and traces of compiled steps, make stays: of an engine's 340,000 objects, all but 4,000,
    which hold no megabyte. Python would look through it again and again: a fifth of the time of imports, about a tenth
    of that of traces, and 0.15 s at once when they have ended.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def trim() -> None:
    """Return memory that is free between small blocks that are not.

    The heap of a process that had thousands of small objects ends in one that stays, and the C library returns only
    what lies behind the last one: after some attacks, 40 MiB were free and not returned. It takes some milliseconds,
    without the interpreter's lock. See malloc_trim(3).
    """
    _function("malloc_trim")(0)


def return_freed_memory() -> None:
    """Have the C library return memory to the system as soon as it is free.

    By default glibc learns from each large block that is freed to keep blocks of its size, up to 32 MiB, and each of
    many threads has a heap of its own: after some large bodies and replies a process keeps hundreds of megabytes. Now
    whatever is large is mapped for itself, and few threads have heaps.
    """
    mallopt = _function("mallopt")
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_ARENA_MAX, _ARENAS)


def _function(name: str) -> Callable[..., object]:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return lambda *numbers: None
