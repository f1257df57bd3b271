"""Command line: `python -m mis_core.aot [--topology ...] [--quick]`.

The compiler reads its target once per process, so every topology is compiled in a process of its own.
"""

import argparse
import json
import subprocess
import sys

from mis_kernels.aot.targets import TARGETS, environment

# Model and the devices along `data` and `tensor`, by topology.
STEPS: dict[str, list[tuple[str, int, int]]] = {
    "v5e": [("qwen3-0.6b", 1, 1)],
    "v6e:1x1": [("qwen3-0.6b", 1, 1), ("qwen2.5-1.5b", 1, 1), ("llama-3.2-1b", 1, 1), ("smollm2-135m", 1, 1)],
    "v6e:2x2": [("qwen3-0.6b", 1, 4), ("qwen3-0.6b", 4, 1), ("qwen2.5-1.5b", 1, 4), ("llama-3.2-3b", 2, 2)],
    "v6e:2x4": [
        ("qwen3-0.6b", 1, 8),
        ("qwen3-0.6b", 8, 1),
        ("qwen2.5-7b", 1, 8),
        ("qwen3-8b", 2, 4),
        ("smollm3-3b", 1, 8),
    ],
    "v7x": [("qwen3-0.6b", 1, 1)],
}
QUICK = {"v6e:2x2": STEPS["v6e:2x2"][:2]}


def compile_for(topology: str, steps: list[tuple[str, int, int]]) -> bool:
    """Compile steps for one topology and print a line for each; return whether all were taken."""
    command = [sys.executable, "-m", "mis_core.aot.worker", json.dumps({"topology": topology, "steps": steps})]
    env = environment(TARGETS[topology], None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    sys.stdout.write("".join(line + "\n" for line in done.stdout.splitlines() if line.startswith(topology)))
    if done.returncode:
        sys.stderr.write(f"FAILED {topology}:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]) + "\n")
    return done.returncode == 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m mis_core.aot", description="Compile the step without a TPU.")
    parser.add_argument("--topology", choices=sorted(STEPS), action="append", help="default: all; repeat for several")
    parser.add_argument("--quick", action="store_true", help="two steps for four chips")
    arguments = parser.parse_args()
    steps = QUICK if arguments.quick and not arguments.topology else STEPS
    taken = [compile_for(name, steps[name]) for name in arguments.topology or steps]
    return 0 if all(taken) else 1


if __name__ == "__main__":
    sys.exit(main())
