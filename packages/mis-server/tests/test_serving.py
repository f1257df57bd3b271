"""`mis-server serve` as a process: what it says when it cannot start, and how it stops."""

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.serving import listen
from mis_server.settings import ServerConfig
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf
from mis_testing.server import RunningServer, free_port, running_server

Factory = Callable[..., Path]


def serve_until_it_fails(*arguments: str) -> str:
    """Run the server, which must not start; returns the one line of standard error that is no log of the start."""
    command = [sys.executable, "-m", "mis_server", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.fixture
def broken(checkpoint_factory: Factory, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be broken by the test."""
    return Path(shutil.copytree(checkpoint_factory(dtype="float32"), tmp_path / "broken"))


def test_a_missing_directory_is_one_line() -> None:
    line = serve_until_it_fails("/no/such/model", "--port", "0")
    assert line == "Error: Model directory '/no/such/model' does not exist."


def test_a_missing_tokenizer_is_one_line(broken: Path) -> None:
    for path in broken.glob("tokenizer*"):
        path.unlink()
    assert "tokenizer.json is missing" in serve_until_it_fails(str(broken), "--port", "0")


def test_a_port_in_use_is_one_line_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = serve_until_it_fails("/no/such/model", "--port", str(port))
    assert line == f"Error: --port: Cannot listen on 127.0.0.1, port {port}: Address already in use."


@pytest.mark.parametrize("host", ["ä" * 100, "a..b", "no.such.host.invalid"])
def test_a_name_that_cannot_be_used_leaves_no_socket_open(host: str) -> None:
    with pytest.raises(ConfigError):
        listen(ServerConfig(engine=EngineConfig(model="m"), host=host, port=0))
    gc.collect()


def test_replies_do_not_wait_for_acknowledgements() -> None:
    with (
        listen(ServerConfig(engine=EngineConfig(model="m"), port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.full
def test_an_unknown_architecture_is_one_line(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"architectures": ["UnheardOfForCausalLM"]}))
    assert "UnheardOfForCausalLM is not supported" in serve_until_it_fails(str(broken), "--port", "0")


@pytest.mark.full
def test_a_missing_tensor_is_one_line(broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, broken / "model.safetensors")
    assert "model.norm.weight" in serve_until_it_fails(str(broken), "--port", "0")


@pytest.mark.full
def test_truncated_weights_are_one_line(broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors: truncated" in serve_until_it_fails(str(broken), "--port", "0")


@pytest.mark.quick
def test_the_real_server_scores(server: RunningServer) -> None:
    body = {"query": [1, 2, 3], "items": [[4], [5, 6], []], "label_token_ids": [7, 8], "apply_softmax": True}
    scores = httpx.post(f"{server.base_url}/v1/score", json=body, trust_env=False, timeout=240).json()["scores"]
    assert [sum(row) for row in scores] == pytest.approx([1, 1, 1])
    for said in (
        " INFO mis_core.engine.loading: Loading ",
        " INFO mis_server.serving: Ready at ",
        " recipe qwen3-reranker\n",
    ):
        assert said in server.stderr
    assert f"{server.base_url}/playground" in server.stderr


@pytest.mark.full
def test_a_gguf_file_is_served_by_its_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "Tiny-Q8_0.gguf", tiny_checkpoint(tmp_path / "model"), "Q8_0")
    body = {"model": "Tiny-Q8_0", "query": "Is it ", "items": ["a cat?", "1984?"], "labels": [" yes", " no"]}
    with running_server(file, "--skip-warmup") as server:
        reply = httpx.post(f"{server.base_url}/v1/score", json=body, trust_env=False, timeout=240).json()
        messages = [{"role": "user", "content": "Is it?"}]
        chat = {"model": "Tiny-Q8_0", "messages": messages, "max_tokens": 1, "label_token_ids": [5, 6]}
        answered = httpx.post(f"{server.base_url}/v1/chat/completions", json=chat, trust_env=False, timeout=240)
    assert [len(row) for row in reply["scores"]] == [2, 2]
    assert reply["model"] == "Tiny-Q8_0"
    assert answered.status_code == 200


@pytest.mark.full
def test_a_truncated_gguf_file_is_one_line(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", tiny_checkpoint(tmp_path / "model"))
    file.write_bytes(file.read_bytes()[:5000])
    assert "model.gguf: a truncated or broken GGUF file" in serve_until_it_fails(str(file), "--port", "0")


def test_a_stopped_server_finishes_what_runs_and_exits_with_zero(checkpoint: Path) -> None:
    replies: list[httpx.Response] = []

    def ask(url: str) -> None:
        items: list[Any] = [[token % 900, *range(20)] for token in range(2000)]
        body = {"query": list(range(64)), "items": items, "label_token_ids": [7]}
        replies.append(httpx.post(url, json=body, trust_env=False, timeout=240))

    small = ("--chunked-prefill-size", "256", "--max-total-tokens", "8192")
    with running_server(checkpoint, "--dtype", "float32", "--skip-warmup", *small) as server:
        asking = threading.Thread(target=ask, args=(f"{server.base_url}/v1/score",))
        asking.start()
        while under_way(server.base_url) < 40_000:
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        asking.join()
        assert server.process.wait(240) == 0, server.stderr
        assert "Traceback" not in server.stderr
    assert replies[0].status_code == 200
    assert len(replies[0].json()["scores"]) == 2000


def under_way(url: str) -> float:
    """Return how many tokens have arrived and are not answered yet."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("mis_num_tokens_under_way "))


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def is_healthy(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    return False


@pytest.mark.parametrize("has_begun", [is_listening, pytest.param(is_healthy, marks=pytest.mark.full)])
def test_a_stop_before_the_model_is_loaded_exits_with_zero(
    checkpoint: Path, tmp_path: Path, has_begun: Callable[[int], bool]
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "mis_server", "serve", str(checkpoint), "--port", str(port)]
    # JAX warns where another test evicts what it is about to write.
    alone = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=alone) as process:
        while not has_begun(port):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=240)
    assert process.returncode == 0
    assert [line for line in error.splitlines() if b" INFO " not in line] == []
