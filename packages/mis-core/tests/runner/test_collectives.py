"""Devices along `data` send each other nothing but what steps of spread requests exchange."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mis_testing import tiny_checkpoint
from mis_testing.devices import environment_with_devices
from mis_testing.shapes import Family

PROGRAM = Path(__file__).parent.parent / "support" / "collectives.py"


# Loops that run for spread requests only. Keys and values have one in all layers but the last, and one in the last. All
# states have one, in which XLA sends memory and inputs together.
LOOPS = {"qwen3": ["write_pages"] * 4, "qwen3_5": ["write_pages"] * 4 + ["copy_states"]}


@pytest.mark.parametrize("family", ["qwen3", pytest.param("qwen3_5", marks=pytest.mark.full)])
def test_only_loops_of_spread_requests_have_collectives(family: Family, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", family=family)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path)],
        env=environment_with_devices(2),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    step, *reads = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(step) == len(LOOPS[family])
    for loop in LOOPS[family]:
        assert sum(f"{loop}/while/body" in scope for (scope,) in step) == LOOPS[family].count(loop)
    assert len(reads) >= 5
    assert not any(reads)
