"""`serve run mis_server.ray:build_app` on a test's cluster."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mis_testing.server import RunningServer, free_port, running_command
from ray_node import RayNode

OPTIONS = (
    "served_model_name=some/model",
    "api_key=none",
    "dtype=float32",
    "skip_warmup=true",
    "chunked_prefill_size=256",
    "max_total_tokens=32768",
)
_START_S = 400


@contextmanager
def serving(node: RayNode, checkpoint: Path, *options: str) -> Iterator[RunningServer]:
    """Serve until the block ends; every route but probes needs the key `none`."""
    serve, port = str(Path(sys.executable).with_name("serve")), free_port()
    environment = os.environ | {"RAY_ADDRESS": node.address}
    start = [serve, "start", "--http-host=127.0.0.1", f"--http-port={port}"]
    subprocess.run(start, env=environment, check=True, capture_output=True, timeout=120)
    command = [serve, "run", "mis_server.ray:build_app", f"model={checkpoint}", *OPTIONS, *options]
    with running_command(
        command, f"http://127.0.0.1:{port}", env={"RAY_ADDRESS": node.address}, ready_timeout_s=_START_S
    ) as server:
        # A first replica answers before the others are there, and queries would move to these.
        deadline = time.monotonic() + _START_S
        while "Application 'default' is ready" not in server.stderr:
            assert time.monotonic() < deadline, server.stderr[-3000:]
            time.sleep(0.1)
        yield server
