"""Running servers: ready before use, stopped after, and honest when they fail. A stand-in plays the server."""

import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from mis_testing.server import free_port, running_command, running_server

STAND_IN = """
import http.server, os, signal, sys, time
started = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = time.monotonic() - started > 0.5
        self.send_response(200 if ready else 503)
        self.end_headers()
    def log_message(self, *args):
        pass
print("hello", os.environ.get("GREETING"), file=sys.stderr, flush=True)
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


CHILD = """
import socket, subprocess, sys
child = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child])
while True:
    try:
        socket.create_connection(("127.0.0.1", {port})).close()
        break
    except ConnectionRefusedError:
        pass
"""


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_free_port_is_none_that_the_system_gives_to_others() -> None:
    given = []
    for _ in range(50):
        with socket.create_server(("127.0.0.1", 0)) as other:
            given.append(other.getsockname()[1])
    assert max(free_port() for _ in range(50)) < min(given)


def test_a_server_is_ready_inside_the_block_and_gone_after_it() -> None:
    port = free_port()
    command = [sys.executable, "-c", STAND_IN, str(port)]
    with running_command(command, f"http://127.0.0.1:{port}", env={"GREETING": "there"}) as server:
        with urllib.request.urlopen(f"{server.base_url}/ready", timeout=5) as reply:
            assert reply.status == 200
        assert "hello there" in server.stderr
    assert server.process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(("path", "asked"), [("/health", '"GET /health HTTP/1.1" 200'), (None, '"GET / HTTP/1.1" 404')])
def test_another_projects_server_is_ready_once_it_answers(path: str | None, asked: str, tmp_path: Path) -> None:
    folder, port = (tmp_path if path else tmp_path / "missing"), free_port()
    (tmp_path / "health").touch()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    with running_command(command, f"http://127.0.0.1:{port}", ready_path=path) as server:
        assert asked in server.stderr
        assert "/ready" not in server.stderr


def test_a_server_that_ignores_sigterm_is_killed() -> None:
    port = free_port()
    command = [sys.executable, "-c", STAND_IN, str(port), "--deaf"]
    with running_command(command, f"http://127.0.0.1:{port}", stop_timeout_s=0.5) as server:
        pass
    assert server.process.returncode == -signal.SIGKILL


def test_children_left_behind_are_ended() -> None:
    port, child_port = free_port(), free_port()
    code = CHILD.format(port=child_port) + STAND_IN
    with running_command([sys.executable, "-c", code, str(port)], f"http://127.0.0.1:{port}"):
        assert is_listening(child_port)
    deadline = time.monotonic() + 10  # a killed process takes a moment to vanish
    while is_listening(child_port) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_listening(child_port)


def test_an_early_end_is_reported_with_its_standard_error() -> None:
    code = "import sys; sys.exit('no such model')"
    with (
        pytest.raises(RuntimeError, match="ended with code 1 before it was ready:\nno such model"),
        running_command([sys.executable, "-c", code], "http://127.0.0.1:1"),
    ):
        pass


def test_a_server_that_never_gets_ready_is_stopped() -> None:
    code = "import time; time.sleep(60)"
    with (
        pytest.raises(TimeoutError, match=r"not ready after 0\.5 s"),
        running_command([sys.executable, "-c", code], f"http://127.0.0.1:{free_port()}", ready_timeout_s=0.5),
    ):
        pass


def test_mis_server_is_started_as_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mis_server.py").write_text("import sys\nsys.exit('argv ' + ' '.join(sys.argv[1:]))\n")
    with (
        pytest.raises(RuntimeError, match=r"argv serve some/model --port \d+ --dtype float32"),
        running_server("some/model", "--dtype", "float32", env={"PYTHONPATH": str(tmp_path)}),
    ):
        pass
