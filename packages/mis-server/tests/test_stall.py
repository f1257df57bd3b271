"""The stall benchmark, at four times its bounds: no admitted text holds up the others, or the end."""

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "stall.py"


def test_the_worst_texts_hold_up_nobody() -> None:
    command = [sys.executable, str(BENCHMARK), "--seconds", "5", "--small", "--slack", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
