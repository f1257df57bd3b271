"""Command line: `python -m mis_kernels.aot.cuda [--quick] [--update-baseline]`."""

import argparse
import sys
from pathlib import Path

from mis_kernels.aot.cuda.check import run

BASELINE = Path(__file__).parents[2] / "aot_cuda_baseline.json"


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m mis_kernels.aot.cuda", description="Compile for GPUs without one.")
    parser.add_argument("--quick", action="store_true", help="two head shapes for each GPU, and steps that grow")
    parser.add_argument("--update-baseline", action="store_true", help="store the figures instead of comparing")
    arguments = parser.parse_args()
    worker = ["mis_kernels.aot.cuda.worker", "quick" if arguments.quick else "all"]
    return run(worker, BASELINE, arguments.update_baseline)


if __name__ == "__main__":
    sys.exit(main())
