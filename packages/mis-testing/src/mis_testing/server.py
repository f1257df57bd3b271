"""A real server in a process of its own, for tests over HTTP."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL_S = 0.1
_PORTS = range(20_000, 32_768)  # above those of Ray's workers
_STDERR_TAIL = 4000  # characters of standard error repeated in an error


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that has said that it is ready.

    Attributes:
        base_url: `http://127.0.0.1:PORT`, without a trailing slash.
        process: The process that listens.
        stderr_path: File that receives its standard error.
    """

    base_url: str
    process: subprocess.Popen[bytes]
    stderr_path: Path

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return self.stderr_path.read_text(encoding="utf-8", errors="replace")

    @property
    def engine_pid(self) -> int:
        """The engine process, a child of `process`; Linux only."""
        (engine,) = (pid for pid, command in self.children.items() if "mis_core.process.main" in command)
        return engine

    @property
    def children(self) -> dict[int, str]:
        """Command lines of the children of `process` by their ids; Linux only."""
        pid = self.process.pid
        found = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found


@contextmanager
def running_server(model_path: str | Path, *flags: str, **options: Any) -> Iterator[RunningServer]:
    """Run `mis-server serve` on a free loopback port until the block ends.

    Args:
        model_path: Checkpoint directory.
        *flags: Further command-line flags, `"--api-key", "secret"` for instance.
        **options: As of `running_command`, which raises the same.
    """
    port = free_port()
    command = [sys.executable, "-m", "mis_server", "serve", str(model_path), "--port", str(port), *flags]
    with running_command(command, f"http://127.0.0.1:{port}", **options) as server:
        yield server


@contextmanager
def running_command(
    command: Sequence[str],
    base_url: str,
    *,
    env: Mapping[str, str] | None = None,
    ready_path: str | None = "/ready",
    ready_timeout_s: float = 180,
    stop_timeout_s: float = 20,
) -> Iterator[RunningServer]:
    """Run any command that serves HTTP at `base_url` until the block ends.

    Args:
        command: Program and arguments.
        base_url: Where it listens.
        env: Environment variables to add to this process's own.
        ready_path: Path that is answered with 200 once it is ready; None if any answer, even an error, will do.
        ready_timeout_s: How long loading and compiling may take.
        stop_timeout_s: How long the server may take to stop after SIGTERM before it is killed.

    Raises:
        RuntimeError: the server ended before it was ready; with its standard error.
        TimeoutError: it was not ready in time; with its standard error.
    """
    with tempfile.TemporaryDirectory(prefix="mis-testing-") as folder:
        stderr_path = Path(folder) / "stderr.txt"
        with stderr_path.open("wb") as stderr:
            # Its own session, so that whatever the server started can be ended with it.
            process = subprocess.Popen(
                command, stdout=stderr, stderr=stderr, env=os.environ | dict(env or {}), start_new_session=True
            )
        server = RunningServer(base_url, process, stderr_path)
        try:
            _wait_until_ready(server, ready_path, ready_timeout_s)
            yield server
        finally:
            stop(process, stop_timeout_s)


def stop(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Send SIGTERM, wait, then kill what is left of the process and its children."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def freeze(pid: int) -> None:
    """Stop a process as SIGSTOP does, and return when none of its threads runs any more; Linux only."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while not all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()):
        time.sleep(0.001)  # the signal reaches each thread when it runs next


def free_port() -> int:
    """Return a loopback port that nothing listens on now.

    It is below the ports that systems choose themselves (RFC 6335 and Linux), so no connection and no server at port 0
    gets it before the intended server listens.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait_until_ready(server: RunningServer, path: str | None, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        code = server.process.poll()
        if code is not None:
            raise RuntimeError(
                f"The server ended with code {code} before it was ready:\n{server.stderr[-_STDERR_TAIL:]}"
            )
        if _is_ready(server.base_url, path):
            return
        time.sleep(_POLL_S)
    raise TimeoutError(f"The server was not ready after {timeout_s:g} s:\n{server.stderr[-_STDERR_TAIL:]}")


def _is_ready(base_url: str, path: str | None) -> bool:
    # No proxy: the environment's proxy must not see loopback requests.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base_url}{path or '/'}", timeout=5):  # any status but success is an error
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return path is None
    except OSError:
        pass
    return False
