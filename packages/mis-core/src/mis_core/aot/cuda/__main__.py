"""Command line: `python -m mis_core.aot.cuda [--quick] [--attention NAME] [--update-baseline]`."""

import argparse
import json
import sys
from pathlib import Path

from mis_kernels.aot.cuda.check import run

BASELINE = Path(__file__).parents[2] / "aot_cuda_baseline.json"


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m mis_core.aot.cuda", description="Compile steps without a GPU.")
    parser.add_argument("--quick", action="store_true", help="Qwen3-0.6B for an H100")
    parser.add_argument("--attention", metavar="NAME", help="a backend to look at, in place of the one that fits first")
    parser.add_argument("--update-baseline", action="store_true", help="store the figures instead of comparing")
    arguments = parser.parse_args()
    job = json.dumps({"quick": arguments.quick, "attention": arguments.attention})
    return run(["mis_core.aot.cuda.worker", job], BASELINE, arguments.update_baseline)


if __name__ == "__main__":
    sys.exit(main())
