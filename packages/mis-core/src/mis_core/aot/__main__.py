"""Command line: `python -m mis_core.aot [--topology ...] [--quick]`.

The compiler reads its target once per process, so every topology is compiled in processes of its own.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from mis_core.aot.roofline import weight_bytes
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.targets import TARGETS, environment
from mis_kernels.aot.worker import AT_ONCE

Step = tuple[str, int, int]
"""A model, and the devices along `data` and `tensor`."""

MODELS = (
    "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b",
    "llama-3.2-1b", "llama-3.2-3b", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b",
)  # fmt: skip
DEVICES = {"v5e": 1, "v6e:1x1": 1, "v7x": 1, "v6e:2x2": 4, "v5e:2x4": 8, "v6e:2x4": 8, "v7x:2x2x1": 8}
OTHERS: dict[str, list[Step]] = {
    "v6e:1x1": [("smollm2-135m", 1, 1), ("gemma-2-2b", 1, 1), ("qwen3.5-0.8b", 1, 1), ("qwen3.5-4b", 1, 1)],
    "v6e:2x2": [("llama-3.2-3b", 2, 2)],
    "v6e:2x4": [
        ("qwen3-8b", 2, 4), ("smollm3-3b", 1, 8), ("ministral-8b", 2, 4), ("qwen3.5-0.8b", 8, 1), ("qwen3.5-4b", 8, 1),
    ],
}  # fmt: skip
QUICK: dict[str, list[Step]] = {"v6e:2x2": [("qwen3-0.6b", 1, 4), ("gemma-3-1b", 4, 1)]}

_WEIGHTS = 0.5  # of a device's memory at most; cache and temporaries need the rest


def steps_of(topology: str) -> list[Step]:
    """Return what is compiled for a topology: each model on all devices, with tokens cut and with weights cut."""
    devices = DEVICES[topology]
    meshes = [(1, 1)] if devices == 1 else [(devices, 1), (1, devices)]
    memory = _WEIGHTS * CHIPS[TARGETS[topology].chip].memory
    steps = [
        (model, *mesh) for model in MODELS for mesh in meshes if weight_bytes(PUBLISHED[model]) / mesh[1] <= memory
    ]
    return [*steps, *OTHERS.get(topology, ())]


def compile_for(topology: str, steps: list[Step], decoding: list[Step]) -> bool:
    """Compile steps for one topology and print a line for each; return whether all were taken.

    Args:
        topology: In `TARGETS`.
        steps: What is compiled.
        decoding: For these, what reads the vocabulary and what decodes is compiled, too.
    """
    job = json.dumps({"topology": topology, "steps": steps, "decoding": decoding})
    command = [sys.executable, "-P", "-m", "mis_core.aot.worker", job]
    env = environment(TARGETS[topology], None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    sys.stdout.write("".join(line + "\n" for line in done.stdout.splitlines() if line.startswith(topology)))
    if done.returncode:
        sys.stderr.write(f"FAILED {topology}:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]) + "\n")
    return done.returncode == 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m mis_core.aot", description="Compile the step without a TPU.")
    parser.add_argument("--topology", choices=sorted(DEVICES), action="append", help="default: all; repeat for several")
    parser.add_argument("--quick", action="store_true", help="two steps for four chips")
    arguments = parser.parse_args()
    names = arguments.topology or DEVICES
    steps = QUICK if arguments.quick and not arguments.topology else {name: steps_of(name) for name in names}
    jobs = [
        (name, each[part::AT_ONCE], each[:1] if part == 0 else [])
        for name, each in steps.items()
        for part in range(min(AT_ONCE, len(each)))
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = list(pool.map(compile_for, *zip(*jobs, strict=True)))
    return 0 if all(taken) else 1


if __name__ == "__main__":
    sys.exit(main())
