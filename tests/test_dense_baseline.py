"""The scripts of the dense baseline, against a server on this machine."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mis_testing.server import RunningServer, running_server

SCRIPTS = Path(__file__).parents[1] / "deploy" / "dense-baseline"
SMALL = ("--workload", "probe-20-36-4", "--vocab-size", "512")


@pytest.fixture(scope="module")
def dense(checkpoint: Path) -> Iterator[RunningServer]:
    flags = ("--mask-impl", "dense", "--disable-radix-cache", "--skip-warmup", "--dtype", "float32")
    with running_server(checkpoint, *flags, "--chunked-prefill-size", "256", "--max-total-tokens", "1024") as running:
        yield running


def run(folder: Path, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with `results` and `collected` in a folder, and the `mis-bench` that is tested."""
    program = folder / "bin" / "mis-bench"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mis_bench "$@"\n')
    program.chmod(0o755)
    variables = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "NO_PROXY": "*"} | env
    command = [str(SCRIPTS / script), *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.full
def test_smoke_and_matrix_are_measured_listed_and_collected(dense: RunningServer, tmp_path: Path) -> None:
    smoke = run(tmp_path, "smoke.sh", *SMALL, URL=dense.base_url, CHUNK_SIZES="1,2")
    assert smoke.returncode == 0, smoke.stderr
    flags = ("--sweep-runs", "2", "--confirm-runs", "0")
    matrix = run(tmp_path, "matrix.sh", *SMALL, *flags, URL=dense.base_url, CHUNK_SIZES="18,36")
    assert matrix.returncode == 0, matrix.stderr
    names = run(tmp_path, "matrix.sh", "--list").stdout.split()
    assert [name.rpartition("-")[0] for name in names] == ["dense-matrix", "dense-smoke"]

    one = run(tmp_path, "matrix.sh", "--collect", names[0])
    assert (one.returncode, one.stdout) == (0, "1 checked, 0 faults\n")
    assert [each.name for each in (tmp_path / "collected").iterdir()] == names[:1]
    (tmp_path / "results" / names[1] / "summary.json").write_text("{}")
    all_of_them = run(tmp_path, "matrix.sh", "--all", COLLECTED="all")
    assert all_of_them.returncode == 1
    assert "2 checked, 1 faults" in all_of_them.stdout
    for name in names:
        copies, originals = tmp_path / "all" / name, tmp_path / "results" / name
        assert {each.name for each in copies.iterdir()} == {each.name for each in originals.iterdir()}


def test_runs_are_collected_from_another_machine(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.write_text('#!/bin/sh\necho "$@" >> remote.log\nexec bash -c "$2"\n')
    remote.chmod(0o755)
    (tmp_path / "far off" / "dense-matrix-1").mkdir(parents=True)
    env = {"REMOTE": f"{remote} --command", "RESULTS": "far off"}
    assert run(tmp_path, "matrix.sh", "--list", **env).stdout == "dense-matrix-1\n"
    assert "cd far\\ off && ls" in (tmp_path / "remote.log").read_text()
    run(tmp_path, "matrix.sh", "--collect", "dense-matrix-1", **env)
    assert (tmp_path / "collected" / "dense-matrix-1").is_dir()


@pytest.mark.parametrize("arguments", [("--collect",), ("--collect", "dense-matrix-9"), ("--all",), ("--list",)])
def test_what_is_not_there_is_not_collected(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert run(tmp_path, "matrix.sh", *arguments).returncode != 0


class _OtherMasks(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"settings":{"mask_impl":"auto"}}')


def test_a_server_with_other_masks_is_refused(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherMasks) as http:
        threading.Thread(target=http.serve_forever).start()
        done = run(tmp_path, "smoke.sh", URL=f"http://127.0.0.1:{http.server_port}")
        http.shutdown()
    assert done.returncode == 1
    assert "has no dense masks; start it with --mask-impl dense" in done.stderr
    assert not (tmp_path / "results").exists()
