"""Peak memory of one large request on a CPU, and what it consists of.

    python packages/mis-core/benchmarks/memory.py --model FOLDER [--items 4000] [--query 2000] [--length 20]

Prints the process's resident memory at each stage and the parts that explain it: weights, KV cache, the
temporaries of the largest step as the compiler states them, and the request's own arrays. Scores twice
with half and with all items: the peak must not depend on their number, beyond the request itself.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from mis_core import Engine

MIB = 2**20


def resident(field: str = "VmRSS") -> float:
    """Return this process's resident memory in MiB, now or (`VmHWM`) at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    """Let the highest value begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def line(what: str, mib: float) -> None:
    """Print one figure."""
    sys.stdout.write(f"{what:58} {mib:10.1f} MiB\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a checkpoint")
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument("--query", type=int, default=2000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--cache", type=int, default=8192, help="tokens of the KV cache")
    options = parser.parse_args()
    line("resident before the engine", resident())
    engine = Engine.from_pretrained(options.model, max_total_tokens=options.cache, progress=False)
    line("resident after the start, all shapes compiled", resident())
    stays = engine.memory()
    cache = sum(array.bytes for name, array in stays.items() if name.startswith("cache/"))
    slots = sum(array.bytes for name, array in stays.items() if name.startswith("slots/"))
    line("  weights", (sum(array.bytes for array in stays.values()) - cache - slots) / MIB)
    line("  KV cache", cache / MIB)
    line("  what slots hold", slots / MIB)
    rng = np.random.default_rng(0)
    query = rng.integers(0, engine.vocab_size, options.query).tolist()
    for items in (options.items // 2, options.items):
        tokens = rng.integers(0, engine.vocab_size, (items, options.length))
        before = resident()
        forget_peak()
        result = engine.score(query, tokens, [1, 2], apply_softmax=True)
        line(f"peak above that while scoring {items} items", resident("VmHWM") - before)
        line("  arrays of the request and of its scores", (tokens.nbytes / 2 + result.scores.nbytes) / MIB)
    line("peak resident", resident("VmHWM"))
    pairs = options.items * options.length * (options.query + options.items * options.length)
    line("an array of items x query would have, at one byte an element", pairs / MIB)
    sys.stdout.write(f"steps of {engine.summary['step_tokens']} tokens\n")
    engine.close()


if __name__ == "__main__":
    main()
