"""A process with the model's tokenizer, which runs one job at a time and can be killed at any moment.

Both ends write frames: eight bytes of length, then a pickle. The first frame has the tokenizer as text, so the process
reads no files, which might be gone. It has no terminal and ignores SIGTERM, so that a signal to the whole process group
of the server does not keep it from finishing accepted requests. It exits at the end of its input, and ends with the
front whatever it does: see `mis_core.process.lifeline`. Templates are rendered in a child of it: see `rendering`.

What a job may take is limited, and the kernel ends the process of one that takes more. A tokenizer of a stranger may
have regular expressions that try without end, and nothing within the process stops the library. So a timer of the
kernel counts processor time: each text that is about to be tokenised adds what the worst honest text of its length
takes, several times over. Its signal ends the process, as does memory that is refused.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import resource
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from mis_core.errors import RequestError
from mis_core.process.lifeline import Lifeline, end_with_starter
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers.rendering import (
    BRIEF_S,
    LONGEST_S,
    Allowance,
    Faults,
    Renderer,
    find_faults,
    watch_templates,
)

_HEADER_BYTES = 8  # of a frame: the number of bytes that follow
_READ_AHEAD_BYTES = 1024 * 1024
_INLINE_BYTES = 65_536  # of a result; a longer one may hold objects enough to hold up the event loop
_MOST_THREADS = 8  # of the library; each takes memory, of which a job has little
# NumPy and SciPy each map 42 MB for every processor that their OpenBLAS sees: on 26 of them, all that a job may have.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

_JOB_S = 10.0
_S_PER_CHARACTER = 2e-5  # five times what a slow processor takes for texts that are one token for each character
_S_PER_BYTE = 1e-6  # of the body
_JOB_BYTES = 1 << 30
_OWN_BYTES, _ = resource.getrlimit(resource.RLIMIT_DATA)  # what this process was started with
_BYTES_PER_BYTE = 256  # of the body; a text that is one token for each character takes 212, one of ideographs 640 each

_REASONS = {
    signal.SIGPROF: "takes far more time than texts of this length may take",
    signal.SIGABRT: "takes more memory than it may, or has failed",
}

_COMMAND = (sys.executable, "-P", "-m", "mis_server.tokenizers.process")

Result = TypeVar("Result")


class ProcessEnded(Exception):
    """The process has ended.

    Attributes:
        signal: Number of the signal that ended it; 0 if none did.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal

    @property
    def described(self) -> str:
        """How it ended, to stand behind a sentence; empty if not by a signal."""
        return f": {signal.Signals(self.signal).name}" if self.signal else ""


def _refusal(number: int) -> RequestError | None:
    """Return the error of a job whose process a signal has ended; None if that is not for what the job took."""
    reason = _REASONS.get(signal.Signals(number)) if number in _REASONS else None
    if reason is None:
        return None
    return RequestError("tokenizer_failed", f"The model's tokenizer {reason}. Send shorter texts, or token ids.")


class TokenizerProcess:
    """The front's side of the process.

    Attributes:
        faults: Why the chat template and the rerank template cannot be compiled; None if a process has not looked.
    """

    faults: Faults | None = None

    def __init__(self, process: Process, lifeline: Lifeline) -> None:
        self._process = process
        self._lifeline = lifeline

    @classmethod
    async def start(cls, tokenizer: str, *, renders: bool = False) -> "TokenizerProcess":
        """Start a process and wait until it has loaded the tokenizer.

        Args:
            tokenizer: What `Tokenizer.to_json` gives.
            renders: Compile the templates as well: nobody waits for the first chat, but the start takes longer.

        Raises:
            OSError: it cannot be started.
            ProcessEnded: it ended before it was ready.
        """
        process = cls(
            *await Lifeline.start(
                lambda fd: asyncio.create_subprocess_exec(
                    *_COMMAND, str(fd), pass_fds=(fd,), stdin=PIPE, stdout=PIPE, start_new_session=True,
                    limit=_READ_AHEAD_BYTES, env=_ONE_THREAD | os.environ,
                )
            )
        )  # fmt: skip
        try:
            await process._exchange(tokenizer)
            await process.run(_load)
            if renders:
                process.faults = await process.run(find_faults)
        except BaseException:
            await process.stop()
            raise
        return process

    async def run(self, work: Callable[[Tokenizer], Result], size: int = 0, *, is_brief: bool = False) -> Result:
        """Call a function, sent as a pickle, with the tokenizer; return or raise what it does.

        Args:
            work: The function.
            size: Bytes of the body that it reads; time and memory may grow with them.
            is_brief: Whether others wait for it; templates then have little time.

        Raises:
            TakesLong: a template takes more than that.
            RequestError: `tokenizer_failed`; it takes more time or memory than `JobLimits` allow.
            ProcessEnded: the process ended before it answered.
        """
        is_result, value = await self._exchange((work, size, is_brief))
        if is_result:
            return value
        try:
            raise value
        finally:
            del value  # it holds this frame

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to have ended."""
        return self._process.returncode is not None

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
        self._lifeline.close()
        await self._process.wait()

    async def _exchange(self, message: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            if stdin.is_closing():  # it has ended between jobs; uvloop's own error would be another one
                raise ConnectionResetError
            data = _pickled(message)
            stdin.write(len(data).to_bytes(_HEADER_BYTES))
            stdin.write(data)
            await stdin.drain()
            size = int.from_bytes(await stdout.readexactly(_HEADER_BYTES))
            data = await stdout.readexactly(size)
            return pickle.loads(data) if size <= _INLINE_BYTES else await asyncio.to_thread(pickle.loads, data)
        except (asyncio.IncompleteReadError, ConnectionError):
            number = max(0, -await self._process.wait())
            if (refused := _refusal(number)) is not None:
                raise refused from None
            raise ProcessEnded(number) from None


class JobLimits:
    """The limits of one process. Between jobs it has those that it was started with."""

    def begin(self, size: int) -> None:
        """Begin a job.

        Args:
            size: Bytes of the body.
        """
        has = _data_bytes()
        if has is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            most = has + _JOB_BYTES + _BYTES_PER_BYTE * size
            allowed = most if _OWN_BYTES == resource.RLIM_INFINITY else min(most, _OWN_BYTES)
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
        signal.setitimer(signal.ITIMER_PROF, _JOB_S + _S_PER_BYTE * size)

    def allow(self, characters: int) -> None:
        """Add the time of texts that are about to be tokenised."""
        left_s, _ = signal.getitimer(signal.ITIMER_PROF)
        signal.setitimer(signal.ITIMER_PROF, left_s + _S_PER_CHARACTER * characters)

    def end(self) -> None:
        """End a job."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.lift_memory_limit()

    def lift_memory_limit(self) -> None:
        """Take away the limit of a job, which a forked process inherits."""
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_OWN_BYTES, hard))


def _data_bytes() -> int | None:
    """Return what the kernel compares with the limit, and the stack besides (proc_pid_statm(5)); None: not Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return None


def _load(tokenizer: Tokenizer) -> None:
    """Import what jobs need, so that nobody's first one takes longer than the next."""
    from mis_core.tasks.classify import task as classify  # noqa: F401
    from mis_core.tasks.classify import token_task as token_classify  # noqa: F401
    from mis_core.tasks.decide import task as decide  # noqa: F401
    from mis_core.tasks.rerank import task as rerank  # noqa: F401
    from mis_core.tasks.text import chat  # noqa: F401
    from mis_core.tasks.text import completion as complete  # noqa: F401
    from mis_server.tokenizers import batch, decoding, tokens  # noqa: F401


def _pickled(message: Any) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _answer(job: bytes, tokenizer: Tokenizer, renderer: Renderer, limits: JobLimits) -> bytes:
    try:
        work, size, is_brief = pickle.loads(job)
        renderer.allowance = Allowance(BRIEF_S if is_brief else LONGEST_S, is_brief)
        limits.begin(size)
        try:
            return _pickled((True, work(tokenizer)))
        finally:
            limits.end()
    except MemoryError:
        return _pickled((False, _refusal(signal.SIGABRT)))
    except BaseException as error:  # a panic of the library is not an Exception
        with contextlib.suppress(Exception):
            if isinstance(error, Exception):
                return _pickled((False, error))
        return _pickled((False, RuntimeError(f"{type(error).__name__}: {error}")))  # it cannot be pickled


def _write_frame(sink: BinaryIO, data: bytes) -> None:
    sink.write(len(data).to_bytes(_HEADER_BYTES))
    sink.write(data)
    sink.flush()


def _read_frame(source: BinaryIO) -> bytes:
    """Read a frame; raises EOFError if it is not all there."""
    header = source.read(_HEADER_BYTES)
    data = source.read(int.from_bytes(header))
    if len(header) < _HEADER_BYTES or len(data) < int.from_bytes(header):
        raise EOFError
    return data


def main() -> None:
    """Run jobs until the input ends."""
    end_with_starter(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ.setdefault("RAYON_NUM_THREADS", str(min(_MOST_THREADS, os.cpu_count() or 1)))
    logging.disable()  # the front has already logged what loading logs
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # printing must not corrupt the frames
    with contextlib.suppress(EOFError, BrokenPipeError):
        limits = JobLimits()
        renderer = Renderer(limits.lift_memory_limit)
        tokenizer = Tokenizer.from_json(pickle.loads(_read_frame(source))).watched(limits.allow)
        watch_templates(tokenizer, renderer)
        _write_frame(sink, _pickled(None))
        while True:
            _write_frame(sink, _answer(_read_frame(source), tokenizer, renderer, limits))


if __name__ == "__main__":
    main()
