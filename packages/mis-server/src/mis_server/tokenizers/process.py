"""A process with the model's tokenizer, which runs one job at a time and can be killed at any moment.

Both ends write frames: eight bytes of length, then a pickle. The first frame has the tokenizer as text, so the process
reads no files, which might be gone. It has no terminal and ignores SIGTERM, so that a signal to the whole process group
of the server does not keep it from finishing accepted requests; it exits at the end of its input.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from mis_core.errors import RequestError
from mis_core.tokenization import Tokenizer

_HEADER_BYTES = 8
_READ_AHEAD_BYTES = 1024 * 1024
_INLINE_BYTES = 65_536  # of a result; a longer one may hold objects enough to hold up the event loop
_COMMAND = (sys.executable, "-m", "mis_server.tokenizers.process")

Result = TypeVar("Result")


class ProcessEnded(Exception):
    """The process has ended."""


class TokenizerProcess:
    """The front's side of the process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, tokenizer: str, *, renders: bool = False) -> "TokenizerProcess":
        """Start a process and wait until it has loaded the tokenizer.

        Args:
            tokenizer: What `Tokenizer.to_json` gives.
            renders: Load what chat templates need as well, so that nobody waits for the first chat; it takes longer.

        Raises:
            OSError: it cannot be started.
            ProcessEnded: it ended before it was ready.
        """
        starting = asyncio.create_task(cls._start(), name="tokenizer start")
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:  # event loops leave half-started processes behind
            with contextlib.suppress(OSError):
                await (await starting).stop()
            raise
        try:
            await process._exchange(tokenizer)
            await process.run(_load)
            if renders:
                await process.run(_render)
        except BaseException:
            await process.stop()
            raise
        return process

    @classmethod
    async def _start(cls) -> "TokenizerProcess":
        return cls(
            await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=_READ_AHEAD_BYTES
            )
        )

    async def run(self, work: Callable[[Tokenizer], Result]) -> Result:
        """Call a function, sent as a pickle, with the tokenizer; return or raise what it does.

        Raises:
            ProcessEnded: the process ended before it answered.
        """
        is_result, value = await self._exchange(work)
        if is_result:
            return value
        raise value

    def cpu_s(self) -> float:
        """Return the seconds that the process has computed; by the clock where the system does not say."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return time.monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: proc_pid_stat(5)

    async def stop(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _exchange(self, message: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            for part in _frame(message):
                stdin.write(part)
            await stdin.drain()
            size = int.from_bytes(await stdout.readexactly(_HEADER_BYTES))
            data = await stdout.readexactly(size)
            return pickle.loads(data) if size <= _INLINE_BYTES else await asyncio.to_thread(pickle.loads, data)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessEnded from None


def _load(tokenizer: Tokenizer) -> None:
    """Import what jobs need, so that nobody's first one takes longer than the next."""
    from mis_core.tasks import chat, classify, complete, decide, rerank  # noqa: F401
    from mis_server.tokenizers import decoding, tokens  # noqa: F401


def _render(tokenizer: Tokenizer) -> None:
    if tokenizer.chat_template is not None:
        with contextlib.suppress(RequestError):  # some refuse this message
            tokenizer.chat_template.render([{"role": "user", "content": "a"}])


def _frame(message: Any) -> tuple[bytes, bytes]:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(_HEADER_BYTES), data


def _read(source: BinaryIO) -> Any:
    header = source.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise EOFError
    return pickle.loads(source.read(int.from_bytes(header)))


def _answer(work: Callable[[Tokenizer], Any], tokenizer: Tokenizer) -> tuple[bytes, bytes]:
    try:
        return _frame((True, work(tokenizer)))
    except BaseException as error:  # a panic of the library is not an Exception
        with contextlib.suppress(Exception):
            if isinstance(error, Exception):
                return _frame((False, error))
        return _frame((False, RuntimeError(f"{type(error).__name__}: {error}")))  # it cannot be pickled


def main() -> None:
    """Run jobs until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.disable()  # the front has already logged what loading logs
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # printing must not corrupt the frames
    with contextlib.suppress(EOFError, BrokenPipeError):
        tokenizer = Tokenizer.from_json(_read(source))
        sink.writelines(_frame(None))
        sink.flush()
        while True:
            sink.writelines(_answer(_read(source), tokenizer))
            sink.flush()


if __name__ == "__main__":
    main()
