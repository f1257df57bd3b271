"""Devices along `data` send each other nothing but what steps of cut requests exchange."""

import json
import subprocess
import sys
from pathlib import Path

from mis_testing import tiny_checkpoint
from mis_testing.devices import environment_with_devices

PROGRAM = Path(__file__).parent.parent / "support" / "collectives.py"


def test_only_the_loop_of_exchanges_has_collectives(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", family="qwen3")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path)],
        env=environment_with_devices(2),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    step, *reads = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(step) == 4  # keys and values, of all layers but the last and of the last
    assert all("write_pages/while/body" in scope for (scope,) in step)
    assert len(reads) >= 5
    assert not any(reads)
