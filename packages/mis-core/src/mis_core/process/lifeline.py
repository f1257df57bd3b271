"""What makes a process end with the one that started it, whatever either of them is doing then.

The starter holds one end of a pipe and writes nothing. When it ends, however it ends, the kernel closes that end and
sends SIGIO to the other process, which the kernel ends for it. No code runs there, so it also ends while a C function
holds the interpreter lock, where a watching thread would wait. `PR_SET_PDEATHSIG` would not do: it fires when the
*thread* ends that started the process. A pipe belongs to the whole process.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import stat
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine
from typing import Any, Self


class Lifeline:
    """The starter's end.

    A process that is forked without `exec`, as `multiprocessing` may do, holds this end as well while it lives.
    """

    def __init__(self, ours: int) -> None:
        self._ours = ours
        self._is_open = True

    @classmethod
    async def start(cls, start: Callable[[int], Coroutine[Any, Any, Process]]) -> tuple[Process, Self]:
        """Start a process that ends with this one.

        A start that is cancelled is finished and the process ended: event loops leave half-started processes behind.

        Args:
            start: Starts the process, which inherits the file descriptor that it is called with.

        Raises:
            OSError: it cannot be started.
        """
        theirs, ours = os.pipe()
        lifeline = cls(ours)
        starting = asyncio.create_task(start(theirs), name="process start")
        try:
            return await asyncio.shield(starting), lifeline
        except BaseException:
            with contextlib.suppress(Exception):
                process = await starting
                process.kill()
                await process.wait()
            lifeline.close()
            raise
        finally:
            os.close(theirs)

    def close(self) -> None:
        """End the process if it still runs. Closing twice is fine."""
        if self._is_open:
            self._is_open = False
            os.close(self._ours)


def end_with_starter(fd: int) -> None:
    """Have the kernel end this process when nobody holds the other end of a pipe any more.

    Args:
        fd: This end. If it is no pipe, nobody started this process with a lifeline, and nothing happens.
    """
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # an ignored signal stays ignored in programs that are started
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    watched = select.poll()
    watched.register(fd, 0)  # the end of the other side is always reported
    if watched.poll(0):
        os._exit(0)  # it ended before the signal was asked for
