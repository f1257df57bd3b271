"""Devices along `data` send each other nothing but what steps of cut requests exchange."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mis_testing import tiny_checkpoint

PROGRAM = Path(__file__).parent.parent / "support" / "collectives.py"


def test_only_the_loop_of_exchanges_has_collectives(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", family="qwen3")
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    step, *reads = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(step) == 4  # keys and values, of all layers but the last and of the last
    assert all("write_pages/while/body" in scope for (scope,) in step)
    assert len(reads) >= 5
    assert not any(reads)
