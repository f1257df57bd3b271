"""Processes end with the one that started them, whatever they are doing. These are real processes."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

_HOLDS_THE_LOCK = """
    import os, sys
    from mis_core.process.lifeline import end_with_starter
    end_with_starter(0)
    print(os.getpid(), flush=True)
    9 ** (9 ** 9)  # one operation: no other thread of this process runs before it is done
"""

_STARTER = """
    import asyncio, sys, threading
    from mis_core.process.engine_process import EngineProcess

    async def start():
        return await EngineProcess.start([sys.executable, "-c", {child!r}])

    def engine():
        started.append(asyncio.run(start()))

    started = []
    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    print("thread ended", flush=True)
    sys.stdin.read()
"""


def ended(pid: int, within_s: float) -> bool:
    """Whether a process, which need not be a child of this one, ends in time."""
    try:
        with os.fdopen(os.pidfd_open(pid)) as process:
            return bool(select.select([process], [], [], within_s)[0])
    except ProcessLookupError:
        return True


@pytest.fixture
def start() -> Callable[[str], subprocess.Popen[str]]:
    def run(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    return run


def test_a_process_that_holds_the_lock_ends_with_its_starter(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    """The lock is the interpreter's. The thread that started the process may end before."""
    with start(_STARTER.format(child=textwrap.dedent(_HOLDS_THE_LOCK))) as starter:
        assert starter.stdout is not None
        lines = [starter.stdout.readline().strip() for _ in range(2)]
        lines.remove("thread ended")
        (pid,) = map(int, lines)
        try:
            assert not ended(pid, 0.5)
            starter.kill()
            assert ended(pid, 240)
        finally:
            starter.kill()
            if not ended(pid, 0):
                os.kill(pid, signal.SIGKILL)


def test_a_process_whose_starter_ended_first_ends_at_once() -> None:
    theirs, ours = os.pipe()
    os.close(ours)
    program = textwrap.dedent(_HOLDS_THE_LOCK)
    assert subprocess.run([sys.executable, "-c", program], stdin=theirs, timeout=240, check=False).stdout is None
    os.close(theirs)


def test_without_a_lifeline_nothing_ends() -> None:
    program = "from mis_core.process.lifeline import end_with_starter; end_with_starter(0); print('lives')"
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert done.stdout == "lives\n"
