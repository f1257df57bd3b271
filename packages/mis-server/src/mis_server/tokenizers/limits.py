"""What a job may take in a tokenizer process; the kernel ends the process of one that takes more.

A tokenizer of a stranger may have regular expressions that try without end, and nothing within the process stops the
library. So a timer of the kernel counts processor time: each text that is about to be tokenised adds what the worst
honest text of its length takes, several times over. Its signal ends the process, as does memory that is refused.
"""

import resource
import signal
from pathlib import Path

from mis_core.errors import RequestError

_JOB_S = 10.0
_S_PER_CHARACTER = 2e-5  # five times what a slow processor takes for texts that are one token for each character
_S_PER_BYTE = 1e-6  # of the body
_JOB_BYTES = 1 << 30
_BYTES_PER_BYTE = 256  # of the body; a text that is one token for each character takes 212, one of ideographs 640 each

_OWN_BYTES, _ = resource.getrlimit(resource.RLIMIT_DATA)  # what the process was started with

_REASONS = {
    signal.SIGPROF: "takes far more time than texts of this length may take",
    signal.SIGABRT: "takes more memory than it may, or has failed",
}


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
        lift_memory_limit()


def lift_memory_limit() -> None:
    """Take away the limit of a job, which a forked process has inherited."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_OWN_BYTES, hard))


def refusal(number: int) -> RequestError | None:
    """Return the error of a job whose process a signal has ended; None if that is not for what the job took."""
    reason = _REASONS.get(signal.Signals(number)) if number in _REASONS else None
    if reason is None:
        return None
    return RequestError("tokenizer_failed", f"The model's tokenizer {reason}. Send shorter texts, or token ids.")


def _data_bytes() -> int | None:
    """Return what the kernel compares with the limit, and the stack besides (proc_pid_statm(5)); None: not Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return None
