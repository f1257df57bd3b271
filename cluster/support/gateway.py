"""HAProxy with the files of `deploy/haproxy`, in front of given replicas."""

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from mis_testing.server import free_port, stop

FILES = Path(__file__).parents[2] / "deploy" / "haproxy"
_READY_S = 30  # every client below is without certificates, which would be read for each
_POLL_S = 0.05
_QUERY_KEY = re.compile(r" key=query:(\S+) ")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running HAProxy.

    Attributes:
        url: Where clients ask, without a trailing slash.
        metrics_url: Where it tells of itself.
        process: The process that listens.
        log_path: File that receives its log.
    """

    url: str
    metrics_url: str
    process: subprocess.Popen[bytes]
    log_path: Path
    socket_path: Path

    @property
    def log(self) -> str:
        """Its log so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def query_keys(self, count: int, begin: int) -> list[str]:
        """Return the keys of queries in its log behind `begin`, once there are this many.

        HAProxy may write a request's line some moments after the answer.

        Raises:
            TimeoutError: The log does not get so many.
        """
        deadline = time.monotonic() + _READY_S
        while len(keys := _QUERY_KEY.findall(self.log[begin:])) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The log has {len(keys)} keys of {count} requests:\n{self.log[begin:]}")
            time.sleep(_POLL_S)
        return keys

    def command(self, line: str) -> str:
        """Send a line to its socket, as an operator does with socat; return the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket_path))
            connection.sendall(f"{line}\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode().strip()

    def states(self) -> dict[str, str]:
        """What HAProxy thinks of every replica, by its name: UP, DOWN, DRAIN, MAINT."""
        return {name: state.split()[0] for name, state in self._column("status").items()}

    def _column(self, column: str) -> dict[str, str]:
        """One of its statistics of every replica, by its name."""
        rows = [line.split(",") for line in self.command("show stat").splitlines()]
        name, value = rows[0].index("svname"), rows[0].index(column)
        return {row[name]: row[value] for row in rows[1:] if row[0] == "replicas" and row[name] != "BACKEND"}

    def wait_until(self, **states: str) -> None:
        """Wait until replicas, named with `_` for `-`, are in these states."""
        wanted = {name.replace("_", "-"): state for name, state in states.items()}
        deadline = time.monotonic() + _READY_S
        while {name: state for name, state in self.states().items() if name in wanted} != wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Replicas are {self.states()}, not {wanted}.")
            time.sleep(_POLL_S)

    def wait_until_idle(self) -> None:
        """Wait until no replica is counted as having a request."""
        deadline = time.monotonic() + _READY_S
        while set((under_way := self._column("scur")).values()) != {"0"}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Requests at replicas are {under_way}.")

    def keys(self) -> dict[str, int]:
        """How many bodies gave a key, by where it comes from."""
        lines = httpx.get(f"{self.metrics_url}/keys", trust_env=False, verify=False).text.splitlines()
        counts = [line.split() for line in lines if line.startswith("mis_gateway_keys_total")]
        return {name.split('"')[1]: int(count) for name, count in counts}


@contextmanager
def running_gateway(
    replicas: Sequence[str],
    *,
    changes: Mapping[str, str] | None = None,
    more: Sequence[Path] = (),
    **variables: str,
) -> Iterator[Gateway]:
    """Run HAProxy in front of replicas until the block ends.

    Args:
        replicas: Base URLs, for `replica-1`, `replica-2`, ...; nothing needs to listen there.
        changes: Lines of `haproxy.cfg`, or parts of them, by what takes their place.
        more: Further configuration files.
        **variables: Environment variables that `haproxy.cfg` reads.

    Raises:
        RuntimeError: HAProxy ended, or does not answer; with its log.
    """
    with tempfile.TemporaryDirectory(prefix="mis-gateway-") as name:
        folder = Path(name)
        text = (FILES / "haproxy.cfg").read_text(encoding="utf-8")
        for old, new in (changes or {}).items():
            assert old in text, f"haproxy.cfg has no {old!r}"
            text = text.replace(old, new)
        (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
        servers = [f"    server replica-{i} {url.partition('//')[2]} id {i}" for i, url in enumerate(replicas, 1)]
        (folder / "replicas.cfg").write_text(
            "\n".join(["backend replicas from mis-replicas", *servers, ""]), encoding="utf-8"
        )
        address, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
        variables = {
            "MIS_GATEWAY_FOLDER": str(FILES),
            "MIS_GATEWAY_ADDRESS": address,
            "MIS_GATEWAY_METRICS": metrics,
            "MIS_GATEWAY_NAME": folder.name,
            "MIS_GATEWAY_SOCKET": str(folder / "socket"),
        } | variables
        files = [
            str(each) for path in (folder / "haproxy.cfg", folder / "replicas.cfg", *more) for each in ("-f", path)
        ]
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                ["haproxy", *files], stdout=log, stderr=log, env=os.environ | variables, start_new_session=True
            )
        gateway = Gateway(f"http://{address}", f"http://{metrics}", process, folder / "log.txt", folder / "socket")
        try:
            _wait_until_it_answers(gateway)
            yield gateway
        finally:
            stop(process, 0)


def _wait_until_it_answers(gateway: Gateway) -> None:
    deadline = time.monotonic() + _READY_S
    while gateway.process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{gateway.url}/health", trust_env=False, verify=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(_POLL_S)
    raise RuntimeError(f"HAProxy does not answer:\n{gateway.log}")
