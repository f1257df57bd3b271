"""A Ray cluster of one node, on this machine, for as long as tests need it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mis_testing.server import free_port, stop

_START_S = 300  # of a machine with other things to do
# Ray's sampling of metrics and its dashboard are half of what a small cluster computes.
_QUIET = {"RAY_enable_metrics_collection": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_QUIET |= {"RAY_raylet_start_wait_time_s": str(_START_S), "RAY_agent_register_timeout_ms": str(_START_S * 1000)}


class RayNode:
    """A running cluster.

    Attributes:
        address: For `ray.init`.
    """

    def __init__(self, address: str, folder: str) -> None:
        self.address = address
        self._folder = folder

    def workers(self, title: str) -> list[int]:
        """Ids of this cluster's worker processes whose title has a text in it."""
        raylets = {pid for pid, command in commands().items() if "raylet" in command and self._folder in command}
        return sorted(
            pid
            for pid, command in commands().items()
            if command.startswith("ray::") and title in command and parent(pid) in raylets
        )


@contextmanager
def ray_node(cpus: int = 3) -> Iterator[RayNode]:
    """Run a cluster with so many CPUs, whatever the machine has, until the block ends."""
    port = free_port()
    # Sockets below it may have names of 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "stdout.txt")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"),
                    *(f"--num-cpus={cpus}", f"--object-store-memory={100 << 20}", "--include-dashboard=false"),
                    *("--node-ip-address=127.0.0.1", f"--temp-dir={folder}", "--disable-usage-stats"),
                ],
                env=os.environ | _QUIET,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + _START_S
            while b"Ray runtime started" not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Ray did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.1)
            yield RayNode(f"127.0.0.1:{port}", folder)
        finally:
            stop(process, 1)  # it would wait for its workers
            for pid, command in commands().items():
                if folder in command:
                    os.kill(pid, signal.SIGKILL)


def commands() -> dict[int, str]:
    """Command lines of all processes by their ids."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[int(path.parent.name)] = re.sub("\0+", " ", path.read_text(errors="replace")).strip()
        except OSError:  # ended meanwhile
            continue
    return found


def parent(pid: int) -> int:
    """Id of the parent of a process, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
