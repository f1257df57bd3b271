"""The scripts of the dense baseline, against a server on this machine."""

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mis_testing.server import RunningServer, free_port, running_server

SCRIPTS = Path(__file__).parents[1] / "deploy" / "dense-baseline"
SMALL = ("--workload", "probe-20-36-4", "--vocab-size", "512")


@pytest.fixture(scope="module")
def dense(checkpoint: Path) -> Iterator[RunningServer]:
    flags = ("--mask-impl", "dense", "--disable-radix-cache", "--skip-warmup", "--dtype", "float32")
    with running_server(checkpoint, *flags, "--chunked-prefill-size", "256", "--max-total-tokens", "1024") as running:
        yield running


def run(folder: Path, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with `results` and `collected` in a folder, and the `mis-bench` and `mis-server` that are tested."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("mis-bench", "mis-server"):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name.replace("-", "_")} "$@"\n')
        (programs / name).chmod(0o755)
    variables = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "NO_PROXY": "*"} | env
    command = [str(SCRIPTS / script), *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.full
def test_smoke_and_matrix_are_measured_listed_and_collected(dense: RunningServer, tmp_path: Path) -> None:
    smoke = run(tmp_path, "smoke.sh", *SMALL, URL=dense.base_url, CHUNK_SIZES="1,2")
    assert smoke.returncode == 0, smoke.stderr
    flags = ("--sweep-runs", "2", "--confirm-runs", "0")
    env = {"URL": dense.base_url, "CHUNK_SIZES": "18,36", "LOG": str(dense.stderr_path)}
    matrix = run(tmp_path, "matrix.sh", *SMALL, *flags, **env)
    assert matrix.returncode == 0, matrix.stderr
    names = run(tmp_path, "matrix.sh", "--list").stdout.split()
    assert [name.rpartition("-")[0] for name in names] == ["dense-matrix", "dense-smoke"]

    assert (tmp_path / "results" / names[0] / "server.log").read_text() == dense.stderr

    one = run(tmp_path, "matrix.sh", "--collect", names[0])
    assert (one.returncode, one.stdout) == (0, "1 checked, 0 faults\n")
    assert [each.name for each in (tmp_path / "collected").iterdir()] == names[:1]
    (tmp_path / "results" / names[1] / "summary.json").write_text("{}")
    all_of_them = run(tmp_path, "matrix.sh", "--all", COLLECTED="all")
    assert all_of_them.returncode == 1
    assert "2 checked, 2 faults" in all_of_them.stdout  # its digest, and what it says
    for name in names:
        copies, originals = tmp_path / "all" / name, tmp_path / "results" / name
        assert {each.name for each in copies.iterdir()} == {each.name for each in originals.iterdir()}


@pytest.mark.full
def test_a_server_is_started_stopped_and_its_log_kept(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    env = {"XDG_CACHE_HOME": str(tmp_path), "MIS_CHUNKED_PREFILL_SIZE": "256", "MIS_SKIP_WARMUP": "true"}
    smoke = run(tmp_path, "smoke.sh", MODEL="random:qwen3-0.6b/16", URL=url, **env)
    assert smoke.returncode == 0, smoke.stderr
    (folder,) = (tmp_path / "results").iterdir()
    log = (folder / "server.log").read_text()
    assert "ready" in log.lower()
    assert {"plan.json", "records.jsonl", "summary.json", "server.log"} <= {each.name for each in folder.iterdir()}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


def test_a_server_that_cannot_start_ends_the_script_with_its_log(tmp_path: Path, checkpoint: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run(tmp_path, "smoke.sh", MODEL=str(checkpoint), URL=url, MIS_CHUNKED_PREFILL_SIZE="7")
    assert done.returncode == 1
    assert "The server has ended. Its log, results/dense-smoke-" in done.stderr
    assert "multiple of 256, not 7" in done.stderr


@pytest.mark.parametrize("script", ["matrix.sh", "smoke.sh"])
def test_help_is_printed_at_once(tmp_path: Path, script: str) -> None:
    done = run(tmp_path, script, "--help", WAIT="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The dense baseline: ")
    assert "matrix.sh --collect RUN  copy a run" in done.stdout
    assert done.stdout.endswith("bash -c\n")  # the comment, and no line of the script
    assert not (tmp_path / "results").exists()


def test_a_checkpoint_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "smoke.sh", MODEL="random:nothing")
    assert done.returncode != 0
    assert "There is no shape 'nothing'" in done.stderr
    assert not (tmp_path / "results").exists()


def test_what_cannot_be_is_said_before_anything_is_measured(tmp_path: Path, checkpoint: Path) -> None:
    done = run(tmp_path, "matrix.sh", URL="http://127.0.0.1:1/", LOG="no-such.log", WAIT="0")
    assert (done.returncode, done.stderr) == (1, "LOG: no-such.log cannot be read.\n")
    for url in ("http://bench.example:30000", "http://localhost"):
        done = run(tmp_path, "matrix.sh", MODEL=str(checkpoint), URL=url)
        assert done.returncode == 1
        assert f"URL must be http://127.0.0.1:PORT, not {url}." in done.stderr


def test_a_port_that_is_taken_starts_nothing(tmp_path: Path, checkpoint: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherMasks) as http:
        threading.Thread(target=http.serve_forever).start()
        done = run(tmp_path, "smoke.sh", MODEL=str(checkpoint), URL=f"http://127.0.0.1:{http.server_port}")
        http.shutdown()
    assert done.returncode == 1
    assert "answers at http://127.0.0.1:" in done.stderr


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
