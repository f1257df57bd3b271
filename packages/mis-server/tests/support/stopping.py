"""`mis-server` as a process that hears Ctrl-C and stops itself where a test wants to interrupt it.

If a test watched from outside until enough was written, all might be written before it acts. `command` runs this module
as a program.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from mis_server.offline import window
from mis_server.offline.output import Output, OutputFile
from mis_server.offline.parquet import OutputFolder


def command(arguments: Sequence[str], *, rows: int | None = None, **sizes: int) -> list[str]:
    """Return what runs `mis-server` with these arguments.

    Args:
        arguments: Of `mis-server`.
        rows: It stops when it has taken so many rows for its output; None: it does not.
        sizes: Of the window of rows, by their names in `mis_server.offline.window`.
    """
    return [sys.executable, __file__, json.dumps([rows, sizes]), *arguments]


@contextlib.contextmanager
def stopped(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until it stops itself; what is still there at the end is killed."""
    with subprocess.Popen(command, **options) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended with {os.waitstatus_to_exitcode(status)}"
        try:
            yield process
        finally:
            process.kill()


def _stop_at(kind: type[Output], rows: int) -> None:
    """Have outputs of a kind stop the process when they have taken so many rows."""
    append, taken = kind.append, 0

    async def append_and_count(output: Output, some: list[Any]) -> None:
        nonlocal taken
        await append(output, some)
        before, taken = taken, taken + len(some)
        if before < rows <= taken:
            os.kill(os.getpid(), signal.SIGSTOP)

    kind.append = append_and_count  # type: ignore[method-assign]


def _main() -> None:
    described, *arguments = sys.argv[1:]
    rows, sizes = json.loads(described)
    for name, size in sizes.items():
        assert hasattr(window, name), name
        setattr(window, name, size)
    if rows is not None:
        for kind in (OutputFile, OutputFolder):
            _stop_at(kind, rows)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell Python would ignore it
    sys.argv[1:] = arguments
    runpy.run_module("mis_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
