"""The front process answers requests without JAX, as the devices belong to the engine process, and without PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mis_testing.server import free_port

OF_THE_ENGINE = {"jax", "jaxlib", "flax", "mis_kernels"}
FORBIDDEN = OF_THE_ENGINE | {"torch"}  # which `transformers` would import, as it is installed for the tests

# Runs the real command line; a thread asks for a score, then reports what this very process has imported.
FRONT = """
import json, os, signal, sys, threading, time, urllib.error, urllib.request
from mis_server.__main__ import main

model, port, *imports = sys.argv[1:]
url = f"http://127.0.0.1:{port}"
http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def is_ready():
    try:
        return http.open(url + "/ready").status == 200
    except OSError:
        return False

def ask():
    while not is_ready():
        time.sleep(0.1)
    body = {"query": "Is it good? ", "items": ["yes", "no"], "labels": ["yes"], "apply_softmax": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + "/v1/score", json.dumps(body).encode(), headers)
    scores = json.load(http.open(request))["scores"]
    for name in imports:
        __import__(name)
    modules = sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None})
    print(json.dumps({"scores": scores, "modules": modules}), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=ask, daemon=True).start()
small = ["--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192"]
sys.argv = ["mis-server", "serve", model, "--port", port, "--dtype", "float32", *small]
main()
"""


def modules_after_a_request(model: Path, *imports: str) -> set[str]:
    command = [sys.executable, "-c", FRONT, str(model), str(free_port()), *imports]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["scores"] == [[1.0], [1.0]]
    return set(report["modules"])


def test_the_front_answers_without_importing_jax(checkpoint: Path) -> None:
    modules = modules_after_a_request(checkpoint)
    assert {"mis_core", "mis_server"} <= modules
    assert modules.isdisjoint(FORBIDDEN), modules & FORBIDDEN


def test_what_starts_the_engine_imports_no_routes() -> None:
    code = "import sys, mis_server.serving; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    late = {"fastapi", "starlette", "pydantic", "huggingface_hub", "scipy", "mis_server.app"}
    assert late.isdisjoint(done.stdout.split())


@pytest.mark.full
def test_the_check_of_jax_can_fail(checkpoint: Path) -> None:
    assert modules_after_a_request(checkpoint, "jax", "flax", "mis_kernels") >= OF_THE_ENGINE
